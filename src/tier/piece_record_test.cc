// A piece's record comes back as it was, and no change of its bytes does more than make an error or another valid piece.
#include "tier/piece_record.h"

#include <gtest/gtest.h>

#include <random>

#include "tier/piece_for_test.h"

namespace kvilt {
namespace {

StoredPiece full() {
  StoredPiece piece = piece_for_test(12, 300, 4);
  piece.behind = Digest{9, 8, 7};
  piece.marks = {{10, 50}, {40, 300}};
  piece.clean = {{{10, 50}, 310, {1, 2, 3}}};
  piece.checksums = {11, 22};
  return piece;
}

TEST(PieceRecord, ComesBack) {
  std::vector<std::byte> bytes;
  encode_piece(full(), bytes);
  auto back = decode_piece(bytes);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(*back, full());
  StoredPiece other = full();
  other.clean[0].before = 9;
  EXPECT_FALSE(*back == other) << "power";
}

// A record of a server that wrote none: what it continues cannot be compared.
TEST(PieceRecord, WithoutWhatIsBeforeItIsOlder) {
  StoredPiece older = full();
  older.behind.reset();
  std::vector<std::byte> bytes;
  encode_piece(older, bytes);
  auto back = decode_piece(bytes);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(*back, older);
  older.parent = 0;
  older.behind = Digest{1};
  bytes.clear();
  encode_piece(older, bytes);
  EXPECT_FALSE(decode_piece(bytes).ok());
}

TEST(PieceRecord, AnOwnerComesBack) {
  std::vector<std::byte> without, bytes;
  encode_piece(full(), without);
  StoredPiece owned = full();
  owned.owner = Digest{6, 5};
  encode_piece(owned, bytes);
  auto back = decode_piece(bytes);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(*back, owned);
  EXPECT_EQ(bytes.size(), without.size() + 16);
  constexpr size_t kFlags = 56, kOwner = 96;  // docs/formats/cache_folder.md
  EXPECT_EQ(bytes[kFlags], without[kFlags] | std::byte{16});
  EXPECT_EQ(bytes[kOwner], std::byte{6});
  EXPECT_EQ(decode_piece(without)->owner, std::nullopt) << "power: as older records";
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(decode_piece(std::span(bytes).first(n)).ok()) << n;
  bytes[kFlags] |= std::byte{32};
  EXPECT_FALSE(decode_piece(bytes).ok()) << "what is not known";
}

TEST(PieceRecord, BlocksOfAChunkAreCountedAndEqual) {
  StoredPiece piece = full();
  piece.blocks = 3;
  piece.checksums = {1, 2, 3, 4, 5, 6};
  std::vector<std::byte> bytes;
  encode_piece(piece, bytes);
  auto back = decode_piece(bytes);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(*back, piece);
  constexpr size_t kFlags = 56, kBlocks = 76;  // docs/formats/cache_folder.md
  EXPECT_EQ(static_cast<int>(bytes[kFlags]) & 8, 8) << "who knows no blocks leaves it out";
  const auto with = [&](uint8_t flags, uint8_t blocks) {
    std::vector<std::byte> other = bytes;
    other[kFlags] = std::byte{flags};
    other[kBlocks] = std::byte{blocks};
    return decode_piece(other).ok();
  };
  EXPECT_TRUE(with(15, 3)) << "power";
  EXPECT_FALSE(with(15, 0));
  EXPECT_FALSE(with(15, 1)) << "there is one way to write a chunk of one block";
  EXPECT_FALSE(with(15, 6)) << "it has fewer sums";
  EXPECT_FALSE(with(15, 5)) << "24 bytes a token are no multiple of it";
  EXPECT_FALSE(with(7, 3)) << "a word that means nothing without the flag";
  piece.blocks = 1;
  piece.checksums = {1, 2};
  bytes.clear();
  encode_piece(piece, bytes);
  EXPECT_EQ(bytes[kFlags], std::byte{7}) << "as older records";
  EXPECT_EQ(bytes[kBlocks], std::byte{0});
}

TEST(PieceRecord, WhatIsBeforeItIsAllOfIt) {
  const HashSecret secret = HashSecret::fixed(1);
  const std::vector<int32_t> a{1, 2, 3}, b{1, 2, 4};
  const Digest of_a = digest_behind(secret, {}, a), of_b = digest_behind(secret, {}, b);
  EXPECT_NE(of_a, of_b);
  EXPECT_NE(digest_behind(secret, of_a, a), digest_behind(secret, of_b, a));
  EXPECT_EQ(digest_behind(secret, of_a, a), digest_behind(secret, of_a, a)) << "power";
}

TEST(PieceRecord, EveryShorterOneIsAnError) {
  std::vector<std::byte> bytes;
  encode_piece(full(), bytes);
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(decode_piece(std::span(bytes).first(n)).ok()) << n;
  bytes.push_back({});
  EXPECT_FALSE(decode_piece(bytes).ok());
}

TEST(PieceRecord, WhatIsWrittenOverKeepsTheRules) {
  std::vector<std::byte> bytes;
  encode_piece(full(), bytes);
  std::mt19937 random(5);
  int errors = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> changed = bytes;
    for (int n = 0; n < 3; ++n) changed[random() % 112] = static_cast<std::byte>(random());
    auto piece = decode_piece(changed);
    if (!piece.ok()) {
      ++errors;
      continue;
    }
    EXPECT_GT(piece->count(), 0);
    EXPECT_LT(piece->parent, piece->id);
    for (const kvilt::Run& mark : piece->marks) EXPECT_LE(mark.end, piece->count());
  }
  EXPECT_GT(errors, 1000);
}

}  // namespace
}  // namespace kvilt
