// What was put is got again, by this process and the next; what is damaged, cut, lost or refused by the disk is an error
// and never other bytes.
#include "tier/disk_tier.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#include "tier/faulty_files_for_test.h"
#include "tier/piece_for_test.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

// Every test with and without a key.
class DiskTierTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override { open(); }
  void open(int64_t limit = 1 << 20) {
    tier.reset();
    auto opened = DiskTier::open(folder.path(), limit, key, files);
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
      auto chunk = chunk_of(*tier, id, i);
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

  // What `other` makes of the folder as it is.
  Error refused(const DiskTier::Key& other) {
    tier.reset();
    const auto opened = DiskTier::open(folder.path(), 1 << 20, other);
    EXPECT_FALSE(opened.ok());
    return opened.ok() ? Error{} : opened.error();
  }
  std::string all_bytes() const {
    std::string out;
    for (const auto& item : fs::recursive_directory_iterator(folder.path())) {
      if (!item.is_regular_file()) continue;
      std::ifstream file(item.path(), std::ios::binary);
      out.append(std::istreambuf_iterator<char>(file), {});
    }
    return out;
  }

  FolderForTest folder;
  FaultyFiles files;
  DiskTier::Key key = GetParam() ? DiskTier::Key(HashSecret::fixed(42)) : std::nullopt;
  std::unique_ptr<DiskTier> tier;
  std::vector<uint64_t> removed;
  const Digest maker = piece_for_test(1, 1).maker;
};

TEST_P(DiskTierTest, ComesBackInTheNextProcess) {
  StoredPiece a = piece_for_test(tier->new_id(), 600);
  a.marks = {{3, 90}};
  a.clean = {{{3, 90}, 3, {4}}};
  ASSERT_TRUE(put(a).ok());
  const uint64_t b = put_new(100, a.id);
  const HashSecret secret = tier->secret();
  open();
  EXPECT_TRUE(std::ranges::equal(tier->secret().bytes(), secret.bytes()));
  EXPECT_EQ(tier->damaged(), 0);
  auto known = tier->known(maker, kTokenBytes);
  ASSERT_TRUE(known.ok());
  ASSERT_EQ(known->size(), 2u);
  EXPECT_EQ((*known)[0].tokens, a.tokens);
  EXPECT_EQ((*known)[0].marks, a.marks);
  EXPECT_EQ((*known)[0].clean, a.clean);
  EXPECT_EQ((*known)[1].parent, a.id);
  EXPECT_TRUE(holds(a.id, 600));
  EXPECT_TRUE(holds(b, 100, a.id));
  EXPECT_GT(tier->new_id(), b);
  EXPECT_TRUE(tier->known({}, kTokenBytes)->empty()) << "another maker's";
  EXPECT_TRUE(tier->known(maker, kTokenBytes + 1)->empty()) << "of another size";
}

TEST_P(DiskTierTest, IsItsOwnersAlone) {
  put_new(100);
  for (const auto& item : fs::recursive_directory_iterator(folder.path())) {
    struct stat about {};
    ASSERT_EQ(::stat(item.path().c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 0777, item.is_directory() ? 0700u : 0600u) << item.path();
  }
  tier.reset();
  fs::permissions(folder.path() + "/kvilt-cache", fs::perms(0755));
  const auto refused = DiskTier::open(folder.path(), 1 << 20, key);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("chmod 700"), std::string::npos) << refused.error().message;
}

TEST_P(DiskTierTest, OneProcessAtATime) {
  const auto second = DiskTier::open(folder.path(), 1 << 20, key);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::kUnavailable);
  EXPECT_NE(second.error().message.find("another process"), std::string::npos);
}

TEST_P(DiskTierTest, TheOldestGoesAndChainsLoseTheirEnds) {
  open(3000 * kTokenBytes);
  const uint64_t root = put_new(600), end = put_new(600, root), other = put_new(600);
  tier->touch(end);  // and with it what it continues
  tier->touch(put_new(1000));
  EXPECT_EQ(removed, std::vector<uint64_t>{other});
  EXPECT_FALSE(holds(other, 600));
  removed.clear();
  put_new(600);
  EXPECT_EQ(removed, std::vector<uint64_t>{end});
  EXPECT_TRUE(holds(root, 600));
  EXPECT_LE(tier->bytes(), int64_t{3000} * kTokenBytes);
  const int64_t pieces = tier->pieces();
  open(3000 * kTokenBytes);
  EXPECT_EQ(tier->pieces(), pieces);
  EXPECT_EQ(tier->damaged(), 0);
}

TEST_P(DiskTierTest, TheOrderOfUseOutlivesTheProcess) {
  const uint64_t a = put_new(100), b = put_new(100), c = put_new(100);
  tier->touch(a);
  open();
  open(3 * 100 * kTokenBytes);  // the records' bytes count too: one has to go
  EXPECT_TRUE(holds(a, 100));
  EXPECT_FALSE(holds(b, 100));
  EXPECT_TRUE(holds(c, 100));
}

TEST_P(DiskTierTest, WhatHasNoRoomIsRefused) {
  open(1000 * kTokenBytes);
  EXPECT_EQ(put(piece_for_test(tier->new_id(), 1001)).error().code, Code::kTooLong);
  EXPECT_EQ(put(piece_for_test(tier->new_id(), 10, 77)).error().code, Code::kNotFound)
      << "what it continues is unknown";
  const uint64_t root = put_new(600);
  EXPECT_EQ(put(piece_for_test(tier->new_id(), 600, root)).error().code, Code::kTooLong) << "or it would lose that";
  EXPECT_TRUE(holds(root, 600));
}

TEST_P(DiskTierTest, DamageIsFoundAndForgotten) {
  const uint64_t a = put_new(600), b = put_new(600), c = put_new(600);
  change(value_file(a), 300 * kTokenBytes);
  EXPECT_TRUE(chunk_of(*tier, a, 0).ok());
  EXPECT_EQ(chunk_of(*tier, a, 1).error().code, Code::kCorrupt);
  EXPECT_EQ(chunk_of(*tier, a, 0).error().code, Code::kNotFound);
  fs::resize_file(value_file(b), 500 * kTokenBytes);
  EXPECT_EQ(chunk_of(*tier, b, 1).error().code, Code::kCorrupt);
  fs::rename(value_file(c), value_file(b));  // another piece's bytes
  EXPECT_EQ(chunk_of(*tier, c, 0).error().code, Code::kNotFound);
  EXPECT_EQ(tier->pieces(), 0);
}

// A block is read by itself, and is what it was; with it the rest of the chunk as before.
TEST_P(DiskTierTest, BlocksAreReadByThemselves) {
  StoredPiece piece = piece_for_test(tier->new_id(), 600);
  piece.blocks = 4;
  ASSERT_TRUE(put(piece).ok());
  open();
  EXPECT_EQ(tier->known(maker, kTokenBytes)->front().blocks, 4u);
  EXPECT_TRUE(holds(piece.id, 600));
  const int64_t extra = GetParam() ? Sealer::kExtra : 0;
  EXPECT_EQ(static_cast<int64_t>(fs::file_size(value_file(piece.id))), 600 * kTokenBytes + 12 * extra);
  const std::vector<std::byte> all = values_for_test(piece);
  std::vector<std::byte> got;
  for (const kvilt::Run blocks : {kvilt::Run{0, 1}, kvilt::Run{1, 3}, kvilt::Run{3, 4}, kvilt::Run{0, 4}}) {
    for (int32_t i = 0; i < 3; ++i) {
      ASSERT_TRUE(tier->get_blocks(piece.id, i, blocks, got).ok());
      const kvilt::Run chunk = chunk_run(i, 600);
      const int64_t size = chunk.size() * kTokenBytes / 4, at = chunk.begin * kTokenBytes + blocks.begin * size;
      const auto wanted = std::span(all).subspan(static_cast<size_t>(at), static_cast<size_t>(blocks.size() * size));
      EXPECT_TRUE(std::ranges::equal(got, wanted)) << i << " " << blocks.begin;
    }
  }
}

TEST_P(DiskTierTest, DamageOfAnyBlockIsFoundWithIt) {
  const int64_t extra = GetParam() ? Sealer::kExtra : 0, block = 256 * kTokenBytes / 4 + extra;
  for (int32_t damaged = 0; damaged < 4; ++damaged) {
    StoredPiece piece = piece_for_test(tier->new_id(), 600);
    piece.blocks = 4;
    ASSERT_TRUE(put(piece).ok());
    change(value_file(piece.id), (4 + damaged) * block + 100);  // of the second chunk
    std::vector<std::byte> got;
    for (int32_t other = 0; other < 4; ++other) {
      if (other == damaged) continue;
      EXPECT_TRUE(tier->get_blocks(piece.id, 1, {other, other + 1}, got).ok());
    }
    EXPECT_TRUE(chunk_of(*tier, piece.id, 0).ok()) << "power: the other chunks are whole";
    const bool alone = damaged % 2 == 0;
    const Status read =
        alone ? tier->get_blocks(piece.id, 1, {damaged, damaged + 1}, got) : tier->get(piece.id, 1, got);
    EXPECT_EQ(read.error().code, Code::kCorrupt) << damaged;
    EXPECT_EQ(tier->pieces(), 0);
  }
  // A block that took another's place.
  StoredPiece piece = piece_for_test(tier->new_id(), 256);
  piece.blocks = 4;
  ASSERT_TRUE(put(piece).ok());
  std::string bytes(static_cast<size_t>(block), 0);
  std::ifstream(value_file(piece.id), std::ios::binary).read(bytes.data(), block);
  std::fstream(value_file(piece.id), std::ios::in | std::ios::out | std::ios::binary)
      .seekp(block)
      .write(bytes.data(), block);
  std::vector<std::byte> got;
  EXPECT_TRUE(tier->get_blocks(piece.id, 0, {0, 1}, got).ok());
  EXPECT_EQ(tier->get_blocks(piece.id, 0, {1, 2}, got).error().code, Code::kCorrupt);
}

TEST_P(DiskTierTest, AFlippedBitOfTheJournalLosesOnePieceAtMost) {
  std::vector<uint64_t> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(put_new(20));
  tier.reset();
  const std::string journal = folder.path() + "/kvilt-cache/journal", copy = folder.path() + "-copy";
  fs::copy(folder.path() + "/kvilt-cache", copy, fs::copy_options::recursive);
  for (int64_t at = 0; at < static_cast<int64_t>(fs::file_size(copy + "/journal")); at += GetParam() ? 127 : 61) {
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

TEST_P(DiskTierTest, AFileThatNobodyNamesIsRemoved) {
  const uint64_t a = put_new(20);
  tier.reset();
  std::ofstream(folder.path() + "/kvilt-cache/1f/91f") << "a crash came before its record";
  std::ofstream(folder.path() + "/kvilt-cache/1f/other") << "?";
  open();
  EXPECT_EQ(value_files(), 1u);
  EXPECT_TRUE(holds(a, 20));
}

TEST_P(DiskTierTest, AFullDiskMakesRoomOfWhatIsOld) {
  files.quota = 1000 * kTokenBytes;
  const uint64_t a = put_new(600);
  const uint64_t b = put_new(700);
  EXPECT_EQ(removed, std::vector<uint64_t>{a});
  EXPECT_TRUE(holds(b, 700));
  files.quota = 0;
  EXPECT_EQ(put(piece_for_test(tier->new_id(), 10)).error().code, Code::kExhausted);
}

TEST_P(DiskTierTest, ATornRecordIsWrittenOver) {
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

TEST_P(DiskTierTest, AReadOnlyDiskStillReads) {
  const uint64_t a = put_new(20);
  files.read_only = true;
  EXPECT_EQ(put(piece_for_test(tier->new_id(), 20)).error().code, Code::kIo);
  EXPECT_TRUE(holds(a, 20));
  tier->touch(a);
  EXPECT_TRUE(holds(a, 20));
}

TEST_P(DiskTierTest, ClearLeavesNothing) {
  put_new(20);
  put_new(600);
  ASSERT_TRUE(tier->clear().ok());
  EXPECT_EQ(tier->bytes(), 0);
  EXPECT_EQ(value_files(), 0u);
  open();
  EXPECT_EQ(tier->pieces(), 0);
}

TEST_P(DiskTierTest, TheJournalStaysShort) {
  for (int i = 0; i < 40; ++i) {
    const uint64_t id = put_new(30000);
    tier->remove(id);
  }
  for (int i = 0; i < 4; ++i) put_new(20);
  EXPECT_LT(fs::file_size(folder.path() + "/kvilt-cache/journal"), 2u << 20);
  open();
  EXPECT_EQ(tier->pieces(), 4);
}

TEST_P(DiskTierTest, ChunksAreOnlyWhatTheyWereAndWhereTheyWere) {
  constexpr int64_t kChunk = 256 * kTokenBytes;
  const int64_t extra = GetParam() ? Sealer::kExtra : 0;
  const auto move_chunk = [&](const std::string& from, int64_t source, const std::string& to, int64_t target) {
    std::string bytes(static_cast<size_t>(kChunk + extra), 0);
    std::ifstream(from, std::ios::binary).seekg(source * (kChunk + extra)).read(bytes.data(), std::ssize(bytes));
    std::fstream out(to, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(target * (kChunk + extra));
    out.write(bytes.data(), std::ssize(bytes));
  };
  const uint64_t a = put_new(600), b = put_new(600), c = put_new(600);
  ASSERT_EQ(static_cast<int64_t>(fs::file_size(value_file(a))), 600 * kTokenBytes + 3 * extra);
  move_chunk(value_file(a), 0, value_file(a), 0);
  EXPECT_TRUE(holds(a, 600)) << "power: in its own place it is right";
  move_chunk(value_file(a), 0, value_file(a), 1);
  EXPECT_EQ(chunk_of(*tier, a, 1).error().code, Code::kCorrupt);
  move_chunk(value_file(c), 1, value_file(b), 1);
  EXPECT_TRUE(chunk_of(*tier, b, 0).ok());
  EXPECT_EQ(chunk_of(*tier, b, 1).error().code, Code::kCorrupt);
  fs::resize_file(value_file(c), 512 * kTokenBytes + 2 * extra);
  EXPECT_TRUE(chunk_of(*tier, c, 1).ok());
  EXPECT_EQ(chunk_of(*tier, c, 2).error().code, Code::kCorrupt);
}

// Every bit that is damaged in a chunk's bytes, its nonce and its tag is seen.
TEST_P(DiskTierTest, NoByteOfAChunkMayChange) {
  for (int64_t at = 0; at < 3 * kTokenBytes + (GetParam() ? Sealer::kExtra : 0); ++at) {
    const uint64_t id = put_new(3);
    ASSERT_TRUE(holds(id, 3));
    change(value_file(id), at);
    EXPECT_EQ(chunk_of(*tier, id, 0).error().code, Code::kCorrupt) << at;
  }
}

// The bytes of the piece that had this name before the last clear() are not those of the one that has it now.
TEST_P(DiskTierTest, OlderBytesOfTheSamePlaceAreNotTaken) {
  StoredPiece piece = piece_for_test(5, 20);
  ASSERT_TRUE(put(piece).ok());
  const std::string older = folder.path() + "/older";
  fs::copy_file(value_file(5), older);
  ASSERT_TRUE(tier->clear().ok());
  std::vector<std::byte> others = values_for_test(piece);
  others[7] ^= std::byte{1};
  ASSERT_TRUE(tier->put(piece, others, removed).ok());
  EXPECT_TRUE(chunk_of(*tier, 5, 0).ok()) << "power";
  fs::copy_file(older, value_file(5), fs::copy_options::overwrite_existing);
  EXPECT_EQ(chunk_of(*tier, 5, 0).error().code, Code::kCorrupt);
}

// Nor after all that had one is forgotten: an old record that is put back finds no other piece in its place.
TEST_P(DiskTierTest, IdsAreNeverUsedTwice) {
  const uint64_t id = put_new(20);
  tier.reset();
  fs::remove(folder.path() + "/kvilt-cache/journal");
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // ids of one millisecond are in no order
  open();
  EXPECT_EQ(tier->pieces(), 0);
  EXPECT_GT(tier->new_id(), id);
}

TEST_P(DiskTierTest, WithAKeyNothingOfItCanBeRead) {
  const StoredPiece piece = piece_for_test(tier->new_id(), 300);
  ASSERT_TRUE(put(piece).ok());
  tier->touch(piece.id);
  tier.reset();
  const std::string all = all_bytes();
  const std::vector<std::byte> values = values_for_test(piece);
  const auto holds_bytes = [&](const void* data, size_t size) {
    return all.find(std::string_view(static_cast<const char*>(data), size)) != std::string::npos;
  };
  const bool readable = !GetParam();  // power: without a key all of it is there
  EXPECT_EQ(holds_bytes(piece.tokens.data(), 4 * sizeof(int32_t)), readable);
  EXPECT_EQ(holds_bytes(&piece.tokens[100], 4 * sizeof(int32_t)), readable);
  EXPECT_EQ(holds_bytes(values.data(), 16), readable);
  EXPECT_EQ(holds_bytes(&values[values.size() - 16], 16), readable);
  EXPECT_EQ(holds_bytes(piece.maker.data(), piece.maker.size()), readable);
  EXPECT_EQ(holds_bytes(piece.domain.data(), piece.domain.size()), readable);
  open();
  EXPECT_EQ(holds_bytes(tier->secret().bytes().data(), 32), readable) << "what digests are made with";
  EXPECT_TRUE(holds(piece.id, 300));
}

TEST_P(DiskTierTest, AnotherKeyOrNoneIsRefusedAndNothingIsLost) {
  const uint64_t id = put_new(300);
  const std::string before = all_bytes();
  const std::vector<DiskTier::Key> others = GetParam() ? std::vector<DiskTier::Key>{std::nullopt, HashSecret::fixed(43)}
                                                       : std::vector<DiskTier::Key>{HashSecret::fixed(42)};
  for (const DiskTier::Key& other : others) {
    const Error why = refused(other);
    EXPECT_EQ(why.code, Code::kInvalidArgument);
    EXPECT_NE(why.message.find("another folder"), std::string::npos) << why.message;
    EXPECT_EQ(all_bytes(), before);
  }
  open();
  EXPECT_TRUE(holds(id, 300));
}

// Two folders with one key: what is in one is nothing in the other.
TEST_P(DiskTierTest, AnotherFoldersFilesAreNothing) {
  const uint64_t id = put_new(300);
  FolderForTest second;
  const auto other = DiskTier::open(second.path(), 1 << 20, key, files);
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE((*other)->put(piece_for_test(id, 300), values_for_test(piece_for_test(id, 300)), removed).ok());
  const fs::path theirs = second.path() + "/kvilt-cache";
  const std::string name = fmt::format("{:02x}/{:x}", id % 256, id);
  fs::copy_file(theirs / name, value_file(id), fs::copy_options::overwrite_existing);
  EXPECT_EQ(chunk_of(*tier, id, 0).ok(), !GetParam()) << "power: without a key equal bytes are equal";
  tier.reset();
  fs::copy_file(theirs / "journal", folder.path() + "/kvilt-cache/journal", fs::copy_options::overwrite_existing);
  open();
  EXPECT_EQ(tier->damaged() > 0, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Keys, DiskTierTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Sealed" : "Plain"; });

class FolderSecretTest : public testing::Test {
 protected:
  std::string file(const char* name) const { return folder.path() + "/kvilt-cache/" + name; }
  Result<std::unique_ptr<DiskTier>> open(const DiskTier::Key& key) {
    return DiskTier::open(folder.path(), 1 << 20, key);
  }
  FolderForTest folder;
  const HashSecret key = HashSecret::fixed(42);
};

TEST_F(FolderSecretTest, ADamagedSecretIsDrawnAnew) {
  const HashSecret before = (*open({}))->secret();
  fs::resize_file(file("secret"), 5);
  EXPECT_FALSE(std::ranges::equal((*open({}))->secret().bytes(), before.bytes()));
}

TEST_F(FolderSecretTest, ItFollowsFromTheKeyAndTheFolder) {
  const HashSecret one = (*open(key))->secret();
  EXPECT_TRUE(std::ranges::equal((*open(key))->secret().bytes(), one.bytes()));
  FolderForTest other;
  const auto second = DiskTier::open(other.path(), 1 << 20, key);
  EXPECT_FALSE(std::ranges::equal((*second)->secret().bytes(), one.bytes()));
  EXPECT_FALSE(std::ranges::equal(key.bytes(), one.bytes()));
  EXPECT_FALSE(fs::exists(file("secret")));
}

// Damage is told from a wrong key, and neither begins the folder anew.
TEST_F(FolderSecretTest, ADamagedProofIsAnErrorThatSaysSo) {
  ASSERT_TRUE(open(key).ok());
  std::string good;
  {
    std::ifstream in(file("sealed"), std::ios::binary);
    good.assign(std::istreambuf_iterator<char>(in), {});
  }
  ASSERT_EQ(good.size(), 88u);
  std::vector<std::string> bad{"", good.substr(1), good + "x"};
  for (size_t at = 0; at < good.size(); ++at) {
    bad.push_back(good);
    bad.back()[at] ^= 4;
  }
  for (const std::string& text : bad) {
    std::ofstream(file("sealed"), std::ios::binary) << text;
    const auto opened = open(key);
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, Code::kCorrupt);
    EXPECT_NE(opened.error().message.find("damaged"), std::string::npos);
    EXPECT_FALSE(fs::exists(file("secret")));
  }
  std::ofstream(file("sealed"), std::ios::binary) << good;
  EXPECT_TRUE(open(key).ok()) << "power";
}

// Whoever gets a folder where nothing was stored yet cannot make it one without a key, or the reverse.
TEST_F(FolderSecretTest, AnEmptyFolderKeepsWhatItBeganWith) {
  ASSERT_TRUE(open({}).ok());
  EXPECT_EQ(open(key).error().code, Code::kInvalidArgument);
  fs::remove_all(file(""));
  ASSERT_TRUE(open(key).ok());
  EXPECT_EQ(open({}).error().code, Code::kInvalidArgument);
}

// A record that was torn by a crash, and a disk that is full: what is whole is there, and the next start is as good.
TEST_P(DiskTierTest, AFullDiskAndATornRecordDoNotKeepItFromStarting) {
  const uint64_t a = put_new(300), b = put_new(20);
  tier.reset();
  const std::string journal = folder.path() + "/kvilt-cache/journal";
  change(journal, static_cast<int64_t>(fs::file_size(journal)) - 40);  // b's record
  files.quota = 0;
  open();
  EXPECT_EQ(tier->damaged(), 1) << "power";
  EXPECT_TRUE(holds(a, 300));
  EXPECT_FALSE(holds(b, 20));
  files.quota = INT64_MAX;
  const uint64_t c = put_new(30);  // over what was torn
  open();
  EXPECT_TRUE(holds(a, 300));
  EXPECT_TRUE(holds(c, 30));
  EXPECT_EQ(value_files(), 2u);
}

// What is only read makes the journal no longer than its bound, nor what is removed.
TEST_P(DiskTierTest, TheJournalStaysShortWhileOnlyReadsHappen) {
  const uint64_t a = put_new(300);
  const std::string journal = folder.path() + "/kvilt-cache/journal";
  uintmax_t longest = 0;
  for (int i = 0; i < 60'000; ++i) {  // of 32 bytes each and more
    tier->touch(a);
    if (i % 100 == 0) longest = std::max(longest, fs::file_size(journal));
  }
  EXPECT_GT(longest, uintmax_t{1} << 19) << "power";
  EXPECT_LT(longest, uintmax_t{5} << 18) << "a MiB, and what the record takes";
  EXPECT_TRUE(holds(a, 300));
  open();
  EXPECT_TRUE(holds(a, 300));
}

// What could not be listed at the start is not lost.
TEST_P(DiskTierTest, AFolderThatCannotBeListedKeepsItsPieces) {
  const uint64_t a = put_new(300);
  files.unlisted = fmt::format("/{:02x}", a % 256);
  open();
  EXPECT_TRUE(holds(a, 300));
  files.unlisted.clear();
  open();
  EXPECT_TRUE(holds(a, 300));
  fs::remove(value_file(a));
  open();
  EXPECT_EQ(tier->pieces(), 0) << "power";
}

// A pipe where a piece's bytes were holds nobody who opens it.
TEST_P(DiskTierTest, APipeIsNoFile) {
  const uint64_t a = put_new(300), b = put_new(20);
  fs::remove(value_file(a));
  ASSERT_EQ(::mkfifo(value_file(a).c_str(), 0600), 0);
  EXPECT_EQ(chunk_of(*tier, a, 0).error().code, Code::kCorrupt);
  EXPECT_TRUE(holds(b, 20));
  ASSERT_EQ(::mkfifo((folder.path() + "/pipe").c_str(), 0600), 0);
  EXPECT_FALSE(files.write(folder.path() + "/pipe", {}).ok());
}

TEST_P(DiskTierTest, WhatIsContinuedHasTheSmallerId) {
  const uint64_t parent = put_new(300);
  const StoredPiece child = piece_for_test(parent - 1, 20, parent);
  EXPECT_EQ(put(child).error().code, Code::kNotFound);
  EXPECT_TRUE(put(piece_for_test(parent + 1, 20, parent)).ok()) << "power";
}

}  // namespace
}  // namespace kvilt
