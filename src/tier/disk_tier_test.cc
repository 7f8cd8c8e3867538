// What was put is got again, by this process and the next; what is damaged, cut, lost or refused by the disk is an error
// and never other bytes.
#include "tier/disk_tier.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <map>

#include "base/error.h"
#include "tier/piece_for_test.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

// Fails from the n-th change on, or while a quota is full.
class FaultyFiles : public Files {
 public:
  Status write(const std::string& path, std::span<const std::byte> bytes) override {
    if (Status refused = refuse(std::ssize(bytes)); !refused.ok()) return refused;
    used_[path] = std::ssize(bytes);
    in_write_ = true;
    Status done = Files::write(path, bytes);
    in_write_ = false;
    return done;
  }
  Status write_at(int fd, int64_t offset, std::span<const std::byte> bytes) override {
    if (read_only) return error(Code::kIo, "read-only file system");
    if (torn && !in_write_) {  // the journal
      (void)Files::write_at(fd, offset, bytes.first(bytes.size() / 2));
      return error(Code::kIo, "input/output error");
    }
    return Files::write_at(fd, offset, bytes);
  }
  Status remove(const std::string& path) override {
    if (read_only) return error(Code::kIo, "read-only file system");
    used_.erase(path);
    return Files::remove(path);
  }
  Status refuse(int64_t bytes) const {
    if (read_only) return error(Code::kIo, "read-only file system");
    int64_t used = 0;
    for (const auto& [path, size] : used_) used += size;
    if (used + bytes > quota) return error(Code::kExhausted, "no space left on device");
    return {};
  }
  bool read_only = false, torn = false;
  int64_t quota = INT64_MAX;

 private:
  std::map<std::string, int64_t> used_;
  bool in_write_ = false;
};

class DiskTierTest : public testing::Test {
 protected:
  void SetUp() override { open(); }
  void open(int64_t limit = 1 << 20) {
    tier.reset();
    auto opened = DiskTier::open(folder.path(), limit, files);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    tier = std::move(opened).value();
  }
  Status put(const StoredPiece& piece) { return tier->put(piece, values_for_test(piece), removed); }
  uint64_t put_new(int32_t tokens, uint64_t parent = 0) {
    const StoredPiece piece = piece_for_test(tier->new_id(), tokens, parent);
    EXPECT_TRUE(put(piece).ok());
    return piece.id;
  }
  // All bytes, as put; false: an error.
  bool holds(uint64_t id, int32_t tokens, uint64_t parent = 0) {
    const std::vector<std::byte> wanted = values_for_test(piece_for_test(id, tokens, parent));
    std::vector<std::byte> got;
    for (int32_t i = 0; i < chunks_of(tokens); ++i) {
      auto chunk = tier->get(id, i);
      if (!chunk.ok()) return false;
      got.insert(got.end(), chunk->begin(), chunk->end());
    }
    EXPECT_EQ(got, wanted);
    return true;
  }
  std::string value_file(uint64_t id) const {
    return fmt::format("{}/kvilt-cache/{:02x}/{:x}", folder.path(), id % 256, id);
  }
  size_t value_files() const {
    size_t n = 0;
    for (const auto& item : fs::recursive_directory_iterator(folder.path()))
      n += item.is_regular_file() && item.path().parent_path().filename() != "kvilt-cache" ? 1 : 0;
    return n;
  }
  void change(const std::string& path, int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char c = static_cast<char>(file.get() ^ 1);
    file.seekp(at);
    file.put(c);
  }

  FolderForTest folder;
  FaultyFiles files;
  std::unique_ptr<DiskTier> tier;
  std::vector<uint64_t> removed;
  const Digest maker = piece_for_test(1, 1).maker;
};

TEST_F(DiskTierTest, ComesBackInTheNextProcess) {
  StoredPiece a = piece_for_test(tier->new_id(), 600);
  a.marks = {{3, 90}};
  a.clean = {{{3, 90}, 3, {4}}};
  ASSERT_TRUE(put(a).ok());
  const uint64_t b = put_new(100, a.id);
  const HashSecret secret = tier->secret();
  open();
  EXPECT_TRUE(std::ranges::equal(tier->secret().bytes(), secret.bytes()));
  EXPECT_EQ(tier->damaged(), 0);
  auto known = tier->known(maker);
  ASSERT_TRUE(known.ok());
  ASSERT_EQ(known->size(), 2u);
  EXPECT_EQ((*known)[0].tokens, a.tokens);
  EXPECT_EQ((*known)[0].marks, a.marks);
  EXPECT_EQ((*known)[0].clean, a.clean);
  EXPECT_EQ((*known)[1].parent, a.id);
  EXPECT_TRUE(holds(a.id, 600));
  EXPECT_TRUE(holds(b, 100, a.id));
  EXPECT_GT(tier->new_id(), b);
  EXPECT_TRUE(tier->known({})->empty()) << "another maker's";
}

TEST_F(DiskTierTest, IsItsOwnersAlone) {
  put_new(100);
  for (const auto& item : fs::recursive_directory_iterator(folder.path())) {
    struct stat about {};
    ASSERT_EQ(::stat(item.path().c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 0777, item.is_directory() ? 0700u : 0600u) << item.path();
  }
  tier.reset();
  fs::permissions(folder.path() + "/kvilt-cache", fs::perms(0755));
  const auto refused = DiskTier::open(folder.path(), 1 << 20);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("chmod 700"), std::string::npos) << refused.error().message;
}

TEST_F(DiskTierTest, OneProcessAtATime) {
  const auto second = DiskTier::open(folder.path(), 1 << 20);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kUnavailable);
  EXPECT_NE(second.error().message.find("another process"), std::string::npos);
}

TEST_F(DiskTierTest, TheOldestGoesAndChainsLoseTheirEnds) {
  open(3000 * kTokenBytes);
  const uint64_t root = put_new(600), end = put_new(600, root), other = put_new(600);
  tier->touch(end);  // and with it what it continues
  put_new(1000);
  EXPECT_EQ(removed, std::vector<uint64_t>{other});
  EXPECT_FALSE(holds(other, 600));
  removed.clear();
  put_new(600);
  EXPECT_EQ(removed, std::vector<uint64_t>{end});
  EXPECT_TRUE(holds(root, 600));
  EXPECT_LE(tier->bytes(), int64_t{3000} * kTokenBytes + 20000);
  const int64_t pieces = tier->pieces();
  open(3000 * kTokenBytes);
  EXPECT_EQ(tier->pieces(), pieces);
  EXPECT_EQ(tier->damaged(), 0);
}

TEST_F(DiskTierTest, TheOrderOfUseOutlivesTheProcess) {
  const uint64_t a = put_new(100), b = put_new(100), c = put_new(100);
  tier->touch(a);
  open();
  open(3 * 100 * kTokenBytes);  // the records' bytes count too: one has to go
  EXPECT_TRUE(holds(a, 100));
  EXPECT_FALSE(holds(b, 100));
  EXPECT_TRUE(holds(c, 100));
}

TEST_F(DiskTierTest, WhatHasNoRoomIsRefused) {
  open(1000 * kTokenBytes);
  EXPECT_EQ(put(piece_for_test(tier->new_id(), 1001)).error().code, Code::kTooLong);
  EXPECT_EQ(put(piece_for_test(tier->new_id(), 10, 77)).error().code, Code::kNotFound)
      << "what it continues is unknown";
  const uint64_t root = put_new(600);
  EXPECT_EQ(put(piece_for_test(tier->new_id(), 600, root)).error().code, Code::kExhausted) << "or it would lose that";
  EXPECT_TRUE(holds(root, 600));
}

TEST_F(DiskTierTest, DamageIsFoundAndForgotten) {
  const uint64_t a = put_new(600), b = put_new(600), c = put_new(600);
  change(value_file(a), 300 * kTokenBytes);
  EXPECT_TRUE(tier->get(a, 0).ok());
  EXPECT_EQ(tier->get(a, 1).error().code, Code::kCorrupt);
  EXPECT_EQ(tier->get(a, 0).error().code, Code::kNotFound);
  fs::resize_file(value_file(b), 500 * kTokenBytes);
  EXPECT_EQ(tier->get(b, 1).error().code, Code::kCorrupt);
  fs::rename(value_file(c), value_file(b));  // another piece's bytes
  EXPECT_EQ(tier->get(c, 0).error().code, Code::kNotFound);
  EXPECT_EQ(tier->pieces(), 0);
}

TEST_F(DiskTierTest, AFlippedBitOfTheJournalLosesOnePieceAtMost) {
  std::vector<uint64_t> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(put_new(20));
  tier.reset();
  const std::string journal = folder.path() + "/kvilt-cache/journal", copy = folder.path() + "-copy";
  fs::copy(folder.path() + "/kvilt-cache", copy, fs::copy_options::recursive);
  for (int64_t at = 0; at < static_cast<int64_t>(fs::file_size(copy + "/journal")); at += 61) {
    tier.reset();
    fs::remove_all(folder.path() + "/kvilt-cache");
    fs::copy(copy, folder.path() + "/kvilt-cache", fs::copy_options::recursive);
    change(journal, at);
    open();
    int found = 0;
    for (const uint64_t id : ids) found += holds(id, 20) ? 1 : 0;
    EXPECT_GE(found, 3) << at;
    EXPECT_EQ(tier->damaged() > 0, found < 4) << at;
    EXPECT_EQ(value_files(), static_cast<size_t>(found)) << at;
  }
  fs::remove_all(copy);
}

TEST_F(DiskTierTest, AFileThatNobodyNamesIsRemoved) {
  const uint64_t a = put_new(20);
  tier.reset();
  std::ofstream(folder.path() + "/kvilt-cache/1f/91f") << "a crash came before its record";
  std::ofstream(folder.path() + "/kvilt-cache/1f/other") << "?";
  open();
  EXPECT_EQ(value_files(), 1u);
  EXPECT_TRUE(holds(a, 20));
}

TEST_F(DiskTierTest, AFullDiskMakesRoomOfWhatIsOld) {
  files.quota = 1000 * kTokenBytes;
  const uint64_t a = put_new(600);
  const uint64_t b = put_new(700);
  EXPECT_EQ(removed, std::vector<uint64_t>{a});
  EXPECT_TRUE(holds(b, 700));
  files.quota = 0;
  EXPECT_EQ(put(piece_for_test(tier->new_id(), 10)).error().code, Code::kExhausted);
}

TEST_F(DiskTierTest, ATornRecordIsWrittenOver) {
  const uint64_t a = put_new(20);
  files.torn = true;
  EXPECT_FALSE(put(piece_for_test(tier->new_id(), 20)).ok());
  files.torn = false;
  const uint64_t b = put_new(20);
  open();
  EXPECT_EQ(tier->damaged(), 0);
  EXPECT_TRUE(holds(a, 20));
  EXPECT_TRUE(holds(b, 20));
  EXPECT_EQ(value_files(), static_cast<size_t>(tier->pieces()));
}

TEST_F(DiskTierTest, AReadOnlyDiskStillReads) {
  const uint64_t a = put_new(20);
  files.read_only = true;
  EXPECT_EQ(put(piece_for_test(tier->new_id(), 20)).error().code, Code::kIo);
  EXPECT_TRUE(holds(a, 20));
  tier->touch(a);
  EXPECT_TRUE(holds(a, 20));
}

TEST_F(DiskTierTest, ClearLeavesNothing) {
  put_new(20);
  put_new(600);
  ASSERT_TRUE(tier->clear().ok());
  EXPECT_EQ(tier->bytes(), 0);
  EXPECT_EQ(value_files(), 0u);
  open();
  EXPECT_EQ(tier->pieces(), 0);
}

TEST_F(DiskTierTest, TheJournalStaysShort) {
  for (int i = 0; i < 40; ++i) {
    const uint64_t id = put_new(30000);
    tier->remove(id);
  }
  for (int i = 0; i < 4; ++i) put_new(20);
  EXPECT_LT(fs::file_size(folder.path() + "/kvilt-cache/journal"), 2u << 20);
  open();
  EXPECT_EQ(tier->pieces(), 4);
}

TEST_F(DiskTierTest, ADamagedSecretIsDrawnAnew) {
  const HashSecret before = tier->secret();
  tier.reset();
  fs::resize_file(folder.path() + "/kvilt-cache/secret", 5);
  open();
  EXPECT_FALSE(std::ranges::equal(tier->secret().bytes(), before.bytes()));
}

}  // namespace
}  // namespace kvilt
