// The KV row formats against their definitions; the 16-bit conversions against the compiler's own, all of them.
#include "tensor/kv_row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace kvilt {
namespace {

#if !defined(__clang__) || __clang_major__ >= 15  // clang 14 has _Float16 only for machines that compute in it
uint16_t bits_of(_Float16 half) {
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}
_Float16 half_of(uint16_t bits) {
  _Float16 half;
  std::memcpy(&half, &bits, sizeof half);
  return half;
}

TEST(F16, EveryHalfAndItsNeighboursConvertAsTheCompilerDoes) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float want = static_cast<float>(half_of(static_cast<uint16_t>(bits)));
    const float got = f16_to_f32(static_cast<uint16_t>(bits));
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got));
      ASSERT_TRUE(std::isnan(f16_to_f32(f32_to_f16(want))));
      continue;
    }
    ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want)) << bits;
    const auto whole = std::bit_cast<uint32_t>(want);
    for (const uint32_t off :
         {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu}) {  // below, at and above the middle to the next one
      const float x = std::bit_cast<float>(whole + off);
      if (std::isnan(x)) continue;
      ASSERT_EQ(f32_to_f16(x), bits_of(static_cast<_Float16>(x))) << x;
    }
  }
}

TEST(F16, RandomFloats) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(x)) continue;
    ASSERT_EQ(f32_to_f16(x), bits_of(static_cast<_Float16>(x))) << x;
  }
}
#endif

TEST(KvRow, NamesAndSizes) {
  EXPECT_EQ(kv_row_bytes(DType::kF32, 64), 256);
  EXPECT_EQ(kv_row_bytes(DType::kF16, 64), 128);
  EXPECT_EQ(kv_row_bytes(DType::kI8, 64), 68);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8})
    EXPECT_EQ(kv_type_of(kv_type_name(type)), type);
  EXPECT_FALSE(kv_type_of("q4_0"));
}

TEST(KvRow, ErrorOfEachFormat) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const int E : {1, 6, 20, 64, 80, 256}) {
    std::vector<float> row(E), back(row.size());
    for (float& x : row) x = 3 * normal(random);
    row[0] = 40;  // an outlier, as keys have them
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
      std::vector<std::byte> bytes(kv_row_bytes(type, E) + 1, std::byte{0x5a});
      encode_kv_row(type, E, row.data(), bytes.data());
      EXPECT_EQ(bytes.back(), std::byte{0x5a});
      decode_kv_row(type, E, bytes.data(), back.data());
      double worst = 0;  // as a share of what the format allows
      for (int e = 0; e < E; ++e) {
        const auto i = static_cast<size_t>(e);
        const double allowed = type == DType::kF32    ? 0
                               : type == DType::kF16  ? std::abs(row[i]) / 2048 + 1e-7
                               : type == DType::kBF16 ? std::abs(row[i]) / 256
                                                      : 0.5001 * 40 / 127;
        EXPECT_LE(std::abs(double{back[i]} - row[i]), allowed) << kv_type_name(type);
        if (allowed > 0) worst = std::max(worst, std::abs(double{back[i]} - row[i]) / allowed);
      }
      if (type != DType::kF32 && E >= 20) {
        EXPECT_GT(worst, 0.2) << "power: the bound is near what happens";
      }
      std::vector<std::byte> again(bytes.size(), std::byte{0x5a});  // what was decoded is encoded as it was
      encode_kv_row(type, E, back.data(), again.data());
      std::vector<float> twice(row.size());
      decode_kv_row(type, E, again.data(), twice.data());
      for (int e = 0; e < E; ++e) EXPECT_NEAR(twice[e], back[e], 1e-5);
    }
  }
}

TEST(KvRow, ZerosAndHugeValues) {
  const std::vector<float> zeros(64, 0.0f), huge(64, 1e30f);
  std::vector<float> back(64);
  for (const DType type : {DType::kF16, DType::kBF16, DType::kI8}) {
    std::vector<std::byte> bytes(kv_row_bytes(type, 64));
    encode_kv_row(type, 64, zeros.data(), bytes.data());
    decode_kv_row(type, 64, bytes.data(), back.data());
    for (const float x : back) EXPECT_EQ(x, 0);
    encode_kv_row(type, 64, huge.data(), bytes.data());
    decode_kv_row(type, 64, bytes.data(), back.data());
    for (const float x : back) EXPECT_NEAR(x, type == DType::kF16 ? 65504.0f : 1e30f, 1e28f);
  }
}

}  // namespace
}  // namespace kvilt
