// What is exported is imported as it was, into a folder that can find it; what is damaged never is, whatever byte.
#include "tier/cache_export.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/checksum.h"
#include "base/mapped_file.h"
#include "tier/piece_for_test.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

const HashSecret kKey = HashSecret::fixed(3), kOtherKey = HashSecret::fixed(4);

std::unique_ptr<DiskTier> open_tier(const std::string& folder, const DiskTier::Key& key = {},
                                    int64_t limit = INT64_MAX) {
  auto tier = DiskTier::open(folder, limit, key);
  EXPECT_TRUE(tier.ok()) << tier.error().message;
  return std::move(*tier);
}

StoredPiece child_for_test(uint64_t id, uint64_t parent) {
  StoredPiece piece = piece_for_test(id, 20, parent);
  piece.behind = Digest{5};
  piece.marks = {{2, 20}};
  return piece;
}

// A chain of two, whose first is cut into blocks, and a piece by itself.
std::vector<StoredPiece> three() {
  std::vector<StoredPiece> out = {piece_for_test(100, 300), child_for_test(200, 100), piece_for_test(300, 5)};
  out[0].blocks = 4;
  out[2].owner = Digest{8};
  return out;
}

void put_all(DiskTier& tier, const std::vector<StoredPiece>& pieces) {
  std::vector<uint64_t> removed;
  for (const StoredPiece& piece : pieces) ASSERT_TRUE(tier.put(piece, values_for_test(piece), removed).ok());
}

// A piece as it is, but for what follows from the folder.
StoredPiece bare(StoredPiece piece) {
  piece.checksums.clear();
  return piece;
}

std::vector<StoredPiece> held(DiskTier& tier) {
  std::vector<StoredPiece> out;
  const std::vector<StoredPiece> all = tier.all().value();
  for (const StoredPiece& piece : all) {
    for (int32_t i = 0; i < chunks_of(piece.count()); ++i) EXPECT_TRUE(chunk_of(tier, piece.id, i).ok());
    out.push_back(bare(piece));
  }
  return out;
}

std::vector<std::byte> export_bytes(const std::string& path) {
  const auto file = MappedFile::open(path);
  return {file->bytes().begin(), file->bytes().end()};
}

// A folder, and its export.
class CacheExport : public testing::TestWithParam<bool> {
 protected:
  CacheExport() : tier_(open_tier(from_.path(), key_)) {
    put_all(*tier_, three());
    const auto done = export_pieces(*tier_, tier_->all().value(), key_, !key_.has_value(), file_);
    EXPECT_TRUE(done.ok()) << done.error().message;
    EXPECT_EQ(done->pieces, 3);
    EXPECT_EQ(done->tokens, 325);
    bytes_ = export_bytes(file_);
    EXPECT_EQ(done->bytes, std::ssize(bytes_));
  }
  const DiskTier::Key key_ = GetParam() ? DiskTier::Key(kKey) : std::nullopt;
  FolderForTest from_, to_;
  const std::string file_ = from_.path() + "/export";
  std::unique_ptr<DiskTier> tier_;
  std::vector<std::byte> bytes_;
};
INSTANTIATE_TEST_SUITE_P(Sealed, CacheExport, testing::Bool());

TEST_P(CacheExport, ANewFolderHasItAsItWas) {
  {
    const auto to = open_tier(to_.path(), key_);
    EXPECT_NE(to->secret().word(0), tier_->secret().word(0));  // power
    const auto done = import_pieces(*to, bytes_, key_);
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_EQ(done->added, 3);
    EXPECT_EQ(done->there + done->damaged, 0);
    EXPECT_FALSE(done->stopped);
    EXPECT_EQ(done->bytes, tier_->all().value()[0].bytes() + 25 * kTokenBytes);
  }
  const auto again = open_tier(to_.path(), key_);  // the secret too is on the disk
  EXPECT_EQ(again->damaged(), 0);
  EXPECT_EQ(again->secret().word(0), tier_->secret().word(0));
  EXPECT_EQ(held(*again), held(*tier_));
  for (const StoredPiece& piece : three()) {
    const std::vector<std::byte> values = values_for_test(piece);
    const auto first = chunk_of(*again, piece.id, 0);
    ASSERT_TRUE(first.ok());
    EXPECT_TRUE(std::equal(first->begin(), first->end(), values.begin()));
  }
}

TEST_P(CacheExport, WhatIsThereStaysAndComesInOnce) {
  const auto done = import_pieces(*tier_, bytes_, key_);
  ASSERT_TRUE(done.ok());
  EXPECT_EQ(done->there, 3);
  EXPECT_EQ(done->added + done->damaged, 0);
  tier_->remove(300);
  EXPECT_EQ(import_pieces(*tier_, bytes_, key_)->added, 1);
  EXPECT_EQ(held(*tier_).size(), 3u);
}

// The folder computed the same by itself, under other ids, one of which is another piece's in the file.
TEST_P(CacheExport, TheSameUnderAnotherIdIsThere) {
  const auto to = open_tier(to_.path(), key_);
  ASSERT_TRUE(to->begin_anew(tier_->seed(), key_).ok());
  StoredPiece first = three()[0], other = piece_for_test(200, 7);
  first.id = 900;
  put_all(*to, {other, first});
  const auto done = import_pieces(*to, bytes_, key_);
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_EQ(done->there, 1);
  EXPECT_EQ(done->added, 2);
  const std::vector<StoredPiece> now = held(*to);
  ASSERT_EQ(now.size(), 4u);
  const auto child = std::ranges::find(now, uint64_t{900}, &StoredPiece::parent);
  ASSERT_NE(child, now.end());
  EXPECT_GT(child->id, 900u);
  EXPECT_EQ(child->tokens, three()[1].tokens);
  EXPECT_EQ(child->behind, three()[1].behind);
  EXPECT_EQ(std::ranges::find(now, uint64_t{200}, &StoredPiece::id)->tokens, other.tokens);
  EXPECT_EQ(import_pieces(*to, bytes_, key_)->there, 3);
}

TEST_P(CacheExport, WhatContinuesSomethingLostIsNoPrefix) {
  const std::vector<StoredPiece> child = {three()[1]};
  ASSERT_EQ(with_beginnings(tier_->all().value(), child).size(), 2u);
  ASSERT_TRUE(export_pieces(*tier_, child, key_, !key_, file_).ok());
  const auto to = open_tier(to_.path(), key_);
  ASSERT_EQ(import_pieces(*to, export_bytes(file_), key_)->added, 1);
  const StoredPiece alone = held(*to).at(0);
  EXPECT_FALSE(alone.prefix);
  EXPECT_TRUE(alone.exact);
  EXPECT_EQ(alone.parent, 0u);
  EXPECT_EQ(alone.pos, 300);
}

TEST_P(CacheExport, IsItsOwnersAlone) {
  struct stat about {};
  ASSERT_EQ(::stat(file_.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  ASSERT_EQ(::chmod(file_.c_str(), 0644), 0);
  ASSERT_TRUE(export_pieces(*tier_, three(), key_, !key_, file_).ok());
  ASSERT_EQ(::stat(file_.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  EXPECT_FALSE(fs::exists(file_ + ".next"));
}

// Any byte, and any length: no crash, and what comes in is what was exported.
TEST_P(CacheExport, DamageIsNeverImported) {
  const std::vector<StoredPiece> good = held(*tier_);
  const auto to = open_tier(to_.path(), key_);
  int refused = 0, partly = 0;
  const auto check = [&](std::span<const std::byte> bytes) {
    ASSERT_TRUE(to->clear().ok());
    const auto done = import_pieces(*to, bytes, key_);
    refused += done.ok() ? 0 : 1;
    if (!done.ok()) {
      EXPECT_EQ(to->pieces(), 0);
      return;
    }
    partly += done->damaged > 0 ? 1 : 0;
    EXPECT_EQ(done->added + done->damaged, 3);
    for (StoredPiece piece : held(*to)) {
      const auto same = std::ranges::find(good, piece.id, &StoredPiece::id);
      ASSERT_NE(same, good.end());
      EXPECT_EQ(piece.tokens, same->tokens);
      const auto values = values_for_test(piece);
      EXPECT_EQ(chunk_of(*to, piece.id, 0)->front(), values.front());
    }
  };
  for (size_t i = 0; i < bytes_.size(); i += i < 80 ? 1 : i < 160 ? 5 : 211) {
    std::vector<std::byte> bad = bytes_;
    bad[i] ^= std::byte{static_cast<unsigned char>(1u << (i % 8))};
    check(bad);
  }
  EXPECT_GE(refused, 80);  // every byte of the head
  EXPECT_GT(partly, 20);
  for (size_t size = 0; size < bytes_.size(); size += 311) check(std::span(bytes_).first(size));
}

// What is kept beside pieces goes along, to new ones and to those that are there without; damage costs it alone.
TEST_P(CacheExport, AnnexesGoAlong) {
  const std::vector<std::byte> first = encode_annexes(annexes_for_test()), last = encode_annexes(annexes_for_test(2));
  std::vector<uint64_t> removed;
  ASSERT_TRUE(tier_->put_annexes(100, first, removed).ok());
  ASSERT_TRUE(tier_->put_annexes(300, last, removed).ok());
  const auto exported = export_pieces(*tier_, tier_->all().value(), key_, true, file_);
  ASSERT_TRUE(exported.ok());
  EXPECT_EQ(exported->annexed, 2);
  const std::vector<std::byte> bytes = export_bytes(file_);
  EXPECT_EQ(exported->bytes, std::ssize(bytes));
  const auto annexes = [](DiskTier& tier, uint64_t id) {
    std::vector<std::byte> out;
    return tier.get_annexes(id, out).ok() ? out : std::vector<std::byte>();
  };
  const auto to = open_tier(to_.path(), key_);
  ASSERT_TRUE(import_pieces(*to, bytes_, key_).ok());
  EXPECT_TRUE(annexes(*to, 100).empty()) << "power";
  const auto later = import_pieces(*to, bytes, key_);
  EXPECT_EQ(later->added, 0);
  EXPECT_EQ(later->annexed, 2) << "the folder had the pieces without";
  EXPECT_EQ(import_pieces(*to, bytes, key_)->annexed, 0) << "those that are there stay";
  for (DiskTier* tier : {to.get(), tier_.get()}) {
    EXPECT_EQ(annexes(*tier, 100), first);
    EXPECT_TRUE(annexes(*tier, 200).empty());
    EXPECT_EQ(annexes(*tier, 300), last);
  }
  int lost = 0;
  for (size_t i = 80; i < bytes.size(); i += 37) {
    std::vector<std::byte> bad = bytes;
    bad[i] ^= std::byte{1};
    ASSERT_TRUE(to->clear().ok());
    const auto done = import_pieces(*to, bad, key_);
    ASSERT_TRUE(done.ok());
    EXPECT_EQ(done->added + done->damaged, 3);
    EXPECT_LE(done->damaged + done->annexes_damaged, 1);
    for (const auto& [id, good] :
         {std::pair(100, first), std::pair(200, std::vector<std::byte>()), std::pair(300, last)}) {
      const std::vector<std::byte> got = annexes(*to, static_cast<uint64_t>(id));
      EXPECT_TRUE(got.empty() || got == good) << id;
    }
    lost += done->annexes_damaged > 0 ? 1 : 0;
  }
  EXPECT_GT(lost, 1) << "power";
}

TEST(CacheExportHead, AnotherVersionIsNamed) {
  std::vector<std::byte> bytes = encode_export_head({.name = {1}, .seed = {}});
  ASSERT_TRUE(read_export_head(bytes).ok());
  for (const uint8_t version : {0, 4}) {
    bytes[8] = std::byte{version};
    EXPECT_EQ(read_export_head(bytes).error().code, Code::kUnsupported);
    EXPECT_NE(read_export_head(bytes).error().message.find("format " + std::to_string(version)), std::string::npos);
  }
}

// As versions of Kvilt that knew no blocks, and no owners, wrote it.
TEST(CacheExportHead, OlderVersionsAreReadToo) {
  for (const uint8_t version : {1, 2}) {
    FolderForTest from, to;
    const std::string file = from.path() + "/file";
    const auto tier = open_tier(from.path());
    std::vector<StoredPiece> pieces = three();
    if (version == 1) pieces[0].blocks = 1;
    pieces[2].owner.reset();
    put_all(*tier, pieces);
    ASSERT_TRUE(export_pieces(*tier, pieces, {}, true, file).ok());
    std::vector<std::byte> bytes = export_bytes(file);
    bytes[8] = std::byte{version};
    EXPECT_FALSE(read_export_head(bytes).ok()) << "power: the sum is another";
    const uint64_t sum = checksum(std::span(bytes).first(72));
    std::memcpy(&bytes[72], &sum, sizeof sum);
    const auto into = open_tier(to.path());
    const auto done = import_pieces(*into, bytes, {});
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_EQ(done->added, 3);
    EXPECT_EQ(held(*into), held(*tier));
  }
}

TEST(CacheExportKeys, WhoseItIsMustAgree) {
  FolderForTest plain, sealed, other;
  const std::string bare = plain.path() + "/bare", full = plain.path() + "/full", closed = plain.path() + "/closed";
  {
    const auto tier = open_tier(plain.path());
    put_all(*tier, three());
    ASSERT_TRUE(export_pieces(*tier, three(), {}, false, bare).ok());
    ASSERT_TRUE(export_pieces(*tier, three(), {}, true, full).ok());
    EXPECT_EQ(import_pieces(*tier, export_bytes(bare), {})->there, 3);  // the same folder needs no secret
  }
  {
    const auto tier = open_tier(sealed.path(), kKey);
    put_all(*tier, three());
    ASSERT_TRUE(export_pieces(*tier, three(), kKey, false, closed).ok());
    EXPECT_EQ(import_pieces(*tier, export_bytes(full), kKey).error().code, Code::kInvalidArgument);
  }
  const auto to = open_tier(other.path());
  EXPECT_NE(import_pieces(*to, export_bytes(bare), {}).error().message.find("--with-secret"), std::string::npos);
  EXPECT_NE(import_pieces(*to, export_bytes(closed), {}).error().message.find("sealed"), std::string::npos);
  EXPECT_EQ(to->pieces(), 0);
  put_all(*to, {piece_for_test(7, 3)});
  EXPECT_NE(import_pieces(*to, export_bytes(full), {}).error().message.find("another secret"), std::string::npos);
  EXPECT_EQ(held(*to).size(), 1u);
  FolderForTest third;
  const auto strange = open_tier(third.path(), kOtherKey);
  EXPECT_NE(import_pieces(*strange, export_bytes(closed), kOtherKey).error().message.find("another key"),
            std::string::npos);
}

TEST(CacheExportKeys, NoSecretIsInTheFileUnlessItWasAskedFor) {
  const auto has = [](const std::vector<std::byte>& in, std::span<const uint8_t> what) {
    const auto bytes = std::as_bytes(what);
    return std::search(in.begin(), in.end(), bytes.begin(), bytes.end()) != in.end();
  };
  FolderForTest plain, sealed;
  const std::string file = plain.path() + "/file";
  const auto tier = open_tier(plain.path());
  put_all(*tier, three());
  ASSERT_TRUE(export_pieces(*tier, three(), {}, false, file).ok());
  EXPECT_FALSE(has(export_bytes(file), tier->secret().bytes()));
  ASSERT_TRUE(export_pieces(*tier, three(), {}, true, file).ok());
  EXPECT_TRUE(has(export_bytes(file), tier->secret().bytes()));  // power
  const std::vector<StoredPiece> pieces = three();
  const auto tokens = std::as_bytes(std::span(pieces[0].tokens).first(8));
  const std::span<const uint8_t> text(reinterpret_cast<const uint8_t*>(tokens.data()), tokens.size());
  EXPECT_TRUE(has(export_bytes(file), text));  // power
  const auto closed = open_tier(sealed.path(), kKey);
  put_all(*closed, three());
  ASSERT_TRUE(export_pieces(*closed, three(), kKey, false, file).ok());
  EXPECT_FALSE(has(export_bytes(file), closed->secret().bytes()));
  EXPECT_FALSE(has(export_bytes(file), kKey.bytes()));
  EXPECT_FALSE(has(export_bytes(file), text));
}

TEST(CacheExportKeys, AFullFolderLosesNothing) {
  FolderForTest from, to;
  const std::string file = from.path() + "/file";
  const auto tier = open_tier(from.path());
  put_all(*tier, three());
  ASSERT_TRUE(export_pieces(*tier, three(), {}, true, file).ok());
  const auto small = open_tier(to.path(), {}, 8000);  // the first has 7,200 bytes of values
  ASSERT_TRUE(small->begin_anew(tier->seed(), {}).ok());
  put_all(*small, {piece_for_test(7, 30)});
  const auto done = import_pieces(*small, export_bytes(file), {});
  ASSERT_TRUE(done.ok());
  ASSERT_TRUE(done->stopped);
  EXPECT_EQ(done->stopped->code, Code::kExhausted);
  EXPECT_EQ(held(*small).size(), 1u);
}

}  // namespace
}  // namespace kvilt
