// Annexes as bytes: what was written is read, and whatever else the bytes say, it is refused or keeps its own rules.
#include "tier/annex_record.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tier/piece_for_test.h"

namespace kvilt {
namespace {

constexpr uint64_t kPiece = 300, kOther = 301;

TEST(AnnexRecord, WhatWasWrittenIsRead) {
  const std::vector<StoredAnnex> annexes = annexes_for_test();
  const std::vector<std::byte> bytes = encode_annexes(annexes);
  EXPECT_EQ(bytes.size() % 8, 0u);
  EXPECT_EQ(decode_annexes(bytes), annexes) << "a kind that nobody here knows included";
  EXPECT_EQ(decode_annexes({}), std::vector<StoredAnnex>());
  EXPECT_NE(decode_annexes(encode_annexes(annexes_for_test(2))), annexes) << "power";
}

// Each byte in turn, and each length: nothing but what reads back as it is.
TEST(AnnexRecord, ReadingIsTotal) {
  const std::vector<std::byte> bytes = encode_annexes(annexes_for_test());
  int refused = 0, taken = 0;
  const auto check = [&](std::span<const std::byte> some) {
    const auto read = decode_annexes(some);
    ++(read ? taken : refused);
    if (!read) return;
    EXPECT_TRUE(std::ranges::equal(encode_annexes(*read), some));
    for (const StoredAnnex& one : *read) EXPECT_TRUE(one.layer >= 0 && one.tokens.begin >= 0 && one.tokens.size() > 0);
  };
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const uint8_t change : {0x01, 0x80, 0xff}) {
      std::vector<std::byte> bad = bytes;
      bad[i] ^= std::byte{change};
      check(bad);
    }
    check(std::span(bytes).first(i));
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(taken, 40) << "power: of what an annex says nobody here knows what is right";
}

TEST(AnnexRecord, BoundToItsPiece) {
  const Sealer sealer(HashSecret::fixed(5)), other(HashSecret::fixed(6));
  const std::vector<std::byte> annexes = encode_annexes(annexes_for_test());
  for (const Sealer* key : {static_cast<const Sealer*>(nullptr), &sealer}) {
    const std::vector<std::byte> bound = bound_annexes(kPiece, annexes, key);
    EXPECT_EQ(annexes_of(kPiece, bound, key), annexes);
    EXPECT_FALSE(annexes_of(kOther, bound, key));
    EXPECT_FALSE(annexes_of(kPiece, bound, key ? nullptr : &sealer));
    EXPECT_FALSE(annexes_of(kPiece, bound, &other));
    for (size_t i = 0; i < bound.size(); ++i) {
      std::vector<std::byte> bad = bound;
      bad[i] ^= std::byte{1};
      EXPECT_FALSE(annexes_of(kPiece, bad, key)) << i;
      EXPECT_FALSE(annexes_of(kPiece, std::span(bound).first(i), key)) << i;
    }
  }
}

}  // namespace
}  // namespace kvilt
