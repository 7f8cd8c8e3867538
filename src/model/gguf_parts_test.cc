// A model in one file and the same in parts: equal, by any part's name; and what is refused.
#include "model/gguf_parts.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "model/model_file.h"
#include "model/tiny_gguf_for_test.h"

namespace kvilt {
namespace {

class GgufPartsTest : public ::testing::Test {
 protected:
  GgufPartsTest() : folder_(std::filesystem::temp_directory_path() / ("kvilt_parts_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~GgufPartsTest() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return (folder_ / name).string();
  }
  // Part `number` of 2: all metadata is in the first, the layers' tensors are in the second.
  static std::string part(int number, uint32_t says = 0, int tensors = 11) {
    TinyGguf tiny;
    tiny.L = 1;
    tiny.metadata = [=](GgufBytes& out) {
      out.u32("split.no", (says ? says : static_cast<uint32_t>(number)) - 1).u32("split.count", 2);
      if (tensors) out.u32("split.tensors.count", static_cast<uint32_t>(tensors));
    };
    tiny.keep = [=](const std::string& name, std::vector<uint64_t>&, uint32_t&) {
      return name.starts_with("blk.") == (number == 2);
    };
    return tiny.build();
  }
  std::string refusal(const std::string& path) const {
    const auto out = open_gguf_parts(path);
    return out.ok() ? std::string() : out.error().message;
  }

  const std::filesystem::path folder_;
};

TEST_F(GgufPartsTest, TogetherTheyAreTheModel) {
  TinyGguf tiny;
  tiny.L = 1;
  const auto whole = open_model(write("whole.gguf", tiny.build()));
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  const std::string first = write("m-00001-of-00002.gguf", part(1)), second = write("m-00002-of-00002.gguf", part(2));
  for (const std::string& path : {first, second}) {
    const auto split = open_model(path);
    ASSERT_TRUE(split.ok()) << split.error().message;
    EXPECT_EQ((*split)->fingerprint, (*whole)->fingerprint) << "metadata, tensors and their contents";
    EXPECT_EQ((*split)->sources.size(), 2u);
  }
  EXPECT_EQ(first_part(second), first);
  EXPECT_EQ(first_part("m-00003-of-00002.gguf"), "m-00003-of-00002.gguf");
  EXPECT_EQ(first_part("m.gguf"), "m.gguf");
}

TEST_F(GgufPartsTest, WhatDoesNotBelongTogetherIsRefused) {
  const std::string first = write("m-00001-of-00002.gguf", part(1));
  EXPECT_NE(refusal(first).find("m-00002-of-00002.gguf: this part"), std::string::npos) << refusal(first);
  write("m-00002-of-00002.gguf", part(2));
  EXPECT_EQ(refusal(first), "") << "power";
  write("m-00002-of-00002.gguf", part(2, 1));
  EXPECT_NE(refusal(first).find("says that it is part 1 of 2; its name says 2 of 2"), std::string::npos)
      << refusal(first);
  write("m-00002-of-00002.gguf", part(1, 2));  // the first one's tensors again
  EXPECT_NE(refusal(first).find("in an earlier part already"), std::string::npos) << refusal(first);
  write("m-00002-of-00002.gguf", part(2));
  const std::string counts = write("m-00001-of-00002.gguf", part(1, 0, 99));
  EXPECT_NE(refusal(counts).find("the model has 99"), std::string::npos) << refusal(counts);
  const std::string named = write("renamed.gguf", part(1));
  EXPECT_NE(refusal(named).find("NAME-00001-of-00002.gguf"), std::string::npos) << refusal(named);
  write("m-00002-of-00002.gguf", "GGUF");
  EXPECT_NE(refusal(first).find("m-00002-of-00002.gguf: truncated"), std::string::npos) << refusal(first);
}

}  // namespace
}  // namespace kvilt
