// A key file is taken where it holds a key and is its owner's alone.
#include "tier/key_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "tier/piece_for_test.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

class KeyFileTest : public testing::Test {
 protected:
  Result<HashSecret> read(const std::string& text, unsigned mode = 0600) const {
    std::ofstream(path, std::ios::binary) << text;
    fs::permissions(path, fs::perms(mode));
    return read_key_file(path);
  }
  FolderForTest folder;
  const std::string path = folder.path() + "/key";
};

std::string digits() {
  std::string out;
  for (int i = 0; i < 32; ++i) out += "0a";
  return out;
}

TEST_F(KeyFileTest, ThirtyTwoBytesOrTheirDigits) {
  const auto one = read(digits() + "\n"), two = read(std::string(32, '\n')), three = key_of(digits(), "x");
  ASSERT_TRUE(one.ok() && two.ok() && three.ok());
  EXPECT_TRUE(std::ranges::equal(one->bytes(), two->bytes()));
  EXPECT_TRUE(std::ranges::equal(one->bytes(), three->bytes()));
}

TEST_F(KeyFileTest, WhatIsNoKeyIsRefusedAndNotShown) {
  for (const std::string& text : {std::string(), digits() + "0", digits().substr(1), std::string(33, 'x'),
                                  std::string(64, 'g'), std::string(100'000, 'x')}) {
    const auto got = read(text);
    ASSERT_FALSE(got.ok()) << text.size();
    EXPECT_EQ(got.error().code, Code::kInvalidArgument);
    EXPECT_NE(got.error().message.find(path), std::string::npos);
    EXPECT_EQ(got.error().message.find("ggg"), std::string::npos);
    EXPECT_EQ(got.error().message.find("xxx"), std::string::npos);
  }
  EXPECT_EQ(read_key_file(folder.path() + "/none").error().code, Code::kNotFound);
  EXPECT_EQ(read_key_file(folder.path()).error().code, Code::kInvalidArgument);
}

TEST_F(KeyFileTest, OthersMayNotReadOrWriteIt) {
  for (const unsigned mode : {0604, 0660, 0644, 0620, 0602, 0610}) {
    const auto got = read(digits(), mode);
    ASSERT_FALSE(got.ok()) << mode;
    EXPECT_EQ(got.error().code, Code::kInvalidArgument);
    EXPECT_NE(got.error().message.find("chmod 600"), std::string::npos) << got.error().message;
    fs::remove(path);
  }
  for (const unsigned mode : {0400u, 0640u}) {  // a group may read: containers mount secrets so
    EXPECT_TRUE(read(digits(), mode).ok());
    fs::remove(path);
  }
}

}  // namespace
}  // namespace kvilt
