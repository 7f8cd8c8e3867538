// Formats without kernels as formats with kernels: the same values, or how near they are.
#include "tensor/requantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tensor/dequantize.h"

namespace kvilt {
namespace {

constexpr size_t kCount = 64 * 256;

// Blocks of random bytes under scales that random ones would mostly spoil.
std::vector<std::byte> random_blocks(DType type, uint64_t seed) {
  std::mt19937_64 random(seed);
  const DTypeInfo info = dtype_info(type);
  std::vector<std::byte> out(dtype_bytes(type, kCount));
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  const auto half = [&](std::byte* to) {
    const float scales[] = {1, -1, 0.0123f, -0.37f, 6e-8f, 200, 0, 3.14159f};
    const uint16_t bits = f32_to_f16(scales[random() % 8]);
    std::memcpy(to, &bits, 2);
  };
  for (size_t b = 0; b < out.size(); b += static_cast<size_t>(info.block_bytes)) {
    if (type == DType::kMXFP4) out[b] = static_cast<std::byte>(104 + random() % 40);
    if (type == DType::kIQ4NL || type == DType::kIQ4XS) half(&out[b]);
    if (type == DType::kQ3_K) half(&out[b + 108]);
    if (type == DType::kQ2_K) half(&out[b + 80]), half(&out[b + 82]);
  }
  return out;
}

std::vector<float> values(DType type, const std::vector<std::byte>& blocks) {
  std::vector<float> out(kCount);
  dequantize(type, blocks.data(), kCount, out.data());
  return out;
}

std::vector<std::byte> other(DType type, const std::vector<std::byte>& blocks) {
  std::vector<std::byte> out(dtype_bytes(kernel_type(type), kCount));
  requantize(type, blocks.data(), kCount, out.data());
  return out;
}

TEST(Requantize, TheLargerFormatHoldsTheSameValues) {
  for (const DType type : {DType::kQ3_K, DType::kIQ4NL, DType::kMXFP4}) {
    const std::vector<std::byte> blocks = random_blocks(type, 7);
    std::vector<std::byte> as = other(type, blocks);
    EXPECT_EQ(values(type, blocks), values(kernel_type(type), as)) << dtype_info(type).name;
    as[40] ^= std::byte{1};
    EXPECT_NE(values(type, blocks), values(kernel_type(type), as)) << dtype_info(type).name << ": power";
  }
}

TEST(Requantize, WhatIsRoundedIsNear) {
  const std::vector<std::byte> iq4 = random_blocks(DType::kIQ4XS, 7), q2 = random_blocks(DType::kQ2_K, 7);
  const std::vector<float> a = values(DType::kIQ4XS, iq4), b = values(DType::kQ8_0, other(DType::kIQ4XS, iq4));
  bool rounded = false;
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_NEAR(a[i], b[i], std::fabs(a[i]) / 2048 + 1e-5f) << i;  // subnormal scales: 2^-25 times 127
    rounded |= a[i] != b[i];
  }
  EXPECT_TRUE(rounded) << "power";
  const std::vector<float> c = values(DType::kQ2_K, q2), d = values(DType::kQ8_0, other(DType::kQ2_K, q2));
  for (size_t i = 0; i < kCount; i += 32) {
    float most = 0, off = 0;
    for (size_t j = i; j < i + 32; ++j) {
      most = std::max(most, std::fabs(c[j]));
      off = std::max(off, std::fabs(c[j] - d[j]));
    }
    EXPECT_LE(off, most / 253 + 1e-5f) << i;
  }
}

// Scales beyond fp16 saturate; they are no weights of a model, and must not become infinite.
TEST(Requantize, ScalesBeyondFp16StayFinite) {
  std::vector<std::byte> blocks = random_blocks(DType::kMXFP4, 7);
  for (size_t b = 0; b < blocks.size(); b += 17) blocks[b] = std::byte{250};
  for (const float value : values(DType::kQ5_0, other(DType::kMXFP4, blocks))) EXPECT_TRUE(std::isfinite(value));
}

TEST(Requantize, TypesWithKernelsStayThemselves) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kQ4_0, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K})
    EXPECT_EQ(kernel_type(type), type);
}

}  // namespace
}  // namespace kvilt
