// Records come back in order; of a damaged file those that are whole do, and no other.
#include "tier/journal.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tier/piece_for_test.h"

namespace kvilt {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> out;
  for (const char c : text) out.push_back(static_cast<std::byte>(c));
  return out;
}

class JournalTest : public testing::Test {
 protected:
  std::vector<std::string> read(int64_t* damaged = nullptr) {
    std::vector<std::string> out;
    PieceJournal journal(files);
    auto opened = journal.open(path, [&](std::span<const std::byte> record, PieceJournal::Place place) {
      EXPECT_EQ(place.size, record.size());
      out.emplace_back(reinterpret_cast<const char*>(record.data()), record.size());
    });
    EXPECT_TRUE(opened.ok());
    if (damaged) *damaged = opened->damaged;
    return out;
  }
  void write(const std::vector<std::string>& records) {
    PieceJournal journal(files);
    ASSERT_TRUE(journal.open(path, [](std::span<const std::byte>, PieceJournal::Place) {}).ok());
    for (const std::string& record : records) ASSERT_TRUE(journal.append(bytes_of(record)).ok());
    ASSERT_TRUE(journal.sync().ok());
  }
  std::string contents() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void replace(const std::string& text) const { std::ofstream(path, std::ios::binary) << text; }

  FolderForTest folder;
  Files files;
  const std::string path = folder.path() + "/journal";
  const std::vector<std::string> records{"one", "", "three, and longer than the others", "four"};
};

TEST_F(JournalTest, ComesBack) {
  EXPECT_TRUE(read().empty());
  write(records);
  EXPECT_EQ(read(), records);
  write({"five"});
  EXPECT_EQ(read().size(), 5u);
}

TEST_F(JournalTest, CutAnywhereItHasTheRecordsBefore) {
  write(records);
  const std::string whole = contents();
  for (size_t n = 0; n < whole.size(); ++n) {
    replace(whole.substr(0, n));
    const auto got = read();
    if (n + 4 < whole.size()) {  // its end are zeros
      ASSERT_LT(got.size(), records.size());
    }
    EXPECT_TRUE(std::equal(got.begin(), got.end(), records.begin())) << n;
    write({"next"});
    EXPECT_EQ(read().back(), "next") << n;
    EXPECT_EQ(read().size(), got.size() + 1) << n;
  }
}

TEST_F(JournalTest, AFlippedBitLosesOneRecord) {
  write(records);
  const std::string whole = contents();
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string text = whole;
    text[at] = static_cast<char>(text[at] ^ 0x10);
    replace(text);
    int64_t damaged = 0;
    const auto got = read(&damaged);
    EXPECT_GE(got.size(), records.size() - 1) << at;
    for (const std::string& record : got) EXPECT_NE(std::ranges::find(records, record), records.end()) << at;
    EXPECT_EQ(damaged > 0, got.size() < records.size()) << at;  // padding may change
  }
}

TEST_F(JournalTest, RewritesWhatIsNamed) {
  write(records);
  PieceJournal journal(files);
  std::vector<PieceJournal::Place> places;
  ASSERT_TRUE(journal.open(path, [&](std::span<const std::byte>, PieceJournal::Place p) { places.push_back(p); }).ok());
  std::vector<PieceJournal::Place*> kept{&places[3], &places[0]};
  ASSERT_TRUE(journal.rewrite(kept).ok());
  EXPECT_EQ(*journal.read(places[0]), bytes_of("one"));
  ASSERT_TRUE(journal.append(bytes_of("new")).ok());
  EXPECT_EQ(read(), (std::vector<std::string>{"four", "one", "new"}));
}

// A file of nothing but heads, each of which says that it has the half of what is left, would cost its square: the search
// for records ends where that would begin, and what is behind is left out.
TEST_F(JournalTest, DamageThatCostsTooMuchIsGivenUp) {
  write({"first"});
  const std::string first = contents();
  const auto heads = [](uint32_t count, uint32_t size) {
    std::string out;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t head[] = {0x314a564b, size, 1, 2};
      out.append(reinterpret_cast<const char*>(head), sizeof head);
    }
    return out;
  };
  replace(first + heads(1 << 16, 1 << 19) + first);
  EXPECT_EQ(read(), std::vector<std::string>{"first"});
  replace(first + heads(16, 64) + first);
  EXPECT_EQ(read(), (std::vector<std::string>{"first", "first"})) << "power";
}

// The new file's name is on the disk before anything is appended to it.
TEST_F(JournalTest, WhatIsWrittenAnewSyncsItsFolder) {
  class CountingFiles : public Files {
   public:
    Status sync_folder_of(const std::string& of) override {
      synced.push_back(of);
      return Files::sync_folder_of(of);
    }
    std::vector<std::string> synced;
  } counting;
  PieceJournal journal(counting);
  ASSERT_TRUE(journal.open(path, [](std::span<const std::byte>, PieceJournal::Place) {}).ok());
  auto place = journal.append(bytes_of("kept"));
  ASSERT_TRUE(place.ok());
  EXPECT_TRUE(counting.synced.empty()) << "power";
  PieceJournal::Place* kept[] = {&*place};
  ASSERT_TRUE(journal.rewrite(kept).ok());
  EXPECT_EQ(counting.synced, std::vector<std::string>{path});
}

}  // namespace
}  // namespace kvilt
