// kernels/weight_samples.h: random weights of any dtype for tests and benchmarks: random quants under sane scales.
#pragma once

#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include "tensor/dtype.h"

namespace kvilt {

// Scales of one block of a Q format, so that its entries are of the order of 1.
inline void put_sane_scales(DType type, std::mt19937_64& random, std::byte* block) {
  std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
  auto put_half = [](std::byte* to, float value) {
    const uint16_t half = f32_to_f16(value);
    std::memcpy(to, &half, 2);
  };
  switch (type) {
    case DType::kQ8_0:
      put_half(block, uniform(random) / 64);
      break;
    case DType::kQ4_1:
    case DType::kQ5_1:
      put_half(block, uniform(random) / 8);
      put_half(block + 2, -uniform(random));
      break;
    case DType::kQ4_K:
    case DType::kQ5_K:
      put_half(block, uniform(random) / 256);
      put_half(block + 2, uniform(random) / 32);
      break;
    case DType::kQ6_K:
      put_half(block + 208, uniform(random) / 2048);
      break;
    case DType::kQ2_K:
      put_half(block + 80, uniform(random) / 16);
      put_half(block + 82, uniform(random) / 16);
      break;
    case DType::kQ3_K:
      put_half(block + 108, uniform(random) / 64);
      break;
    case DType::kIQ4NL:
      put_half(block, uniform(random) / 64);
      break;
    case DType::kIQ4XS:
      put_half(block, uniform(random) / 1024);
      break;
    case DType::kMXFP4:
      *block = static_cast<std::byte>(124 + random() % 3);
      break;
    default:
      put_half(block, uniform(random) / 8);
  }
}

// rows x cols of a Q format: all bytes are `fill` but the scales.
inline std::vector<std::byte> filled_weight(DType type, int64_t rows, int64_t cols, std::byte fill) {
  std::mt19937_64 random(1);
  std::vector<std::byte> bytes(dtype_bytes(type, rows * cols), fill);
  for (size_t b = 0; b < bytes.size(); b += dtype_info(type).block_bytes) put_sane_scales(type, random, &bytes[b]);
  return bytes;
}

// rows x cols of `type`, entries of the order of 1.
inline std::vector<std::byte> random_weight(DType type, int64_t rows, int64_t cols, uint64_t seed) {
  std::mt19937_64 random(seed);
  const DTypeInfo info = dtype_info(type);
  std::vector<std::byte> bytes(dtype_bytes(type, rows * cols));
  if (info.block == 1) {
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < bytes.size(); i += info.block_bytes) {
      const float value = normal(random);
      const uint16_t narrow = type == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
      std::memcpy(&bytes[i], type == DType::kF32 ? static_cast<const void*>(&value) : &narrow, info.block_bytes);
    }
    return bytes;
  }
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    const uint64_t word = random();
    std::memcpy(&bytes[i], &word, 8);
  }
  for (; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(random());
  for (size_t b = 0; b < bytes.size(); b += info.block_bytes) put_sane_scales(type, random, &bytes[b]);
  return bytes;
}

}  // namespace kvilt
