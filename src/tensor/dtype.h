// tensor/dtype.h: element types of weights and KV, their block sizes, and the scalar conversions.
// Source: GGUF v3's block formats (docs/formats/gguf.md). A quantised row is a whole number of blocks along its inputs.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace kvilt {

// NOLINTNEXTLINE(readability-identifier-naming): the names of GGUF
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kI8,
  kQ2_K,  // from here on: in files only, kernels see them as another type (tensor/requantize.h)
  kQ3_K,
  kIQ4NL,
  kIQ4XS,
  kMXFP4
};
inline constexpr DType kLastDType = DType::kMXFP4;

struct DTypeInfo {
  std::string_view name;
  int block;        // elements of a block
  int block_bytes;  // bytes of a block
};

constexpr DTypeInfo dtype_info(DType type) {
  switch (type) {
    case DType::kF32:
      return {"F32", 1, 4};
    case DType::kF16:
      return {"F16", 1, 2};
    case DType::kBF16:
      return {"BF16", 1, 2};
    case DType::kQ4_0:
      return {"Q4_0", 32, 18};
    case DType::kQ4_1:
      return {"Q4_1", 32, 20};
    case DType::kQ5_0:
      return {"Q5_0", 32, 22};
    case DType::kQ5_1:
      return {"Q5_1", 32, 24};
    case DType::kQ8_0:
      return {"Q8_0", 32, 34};
    case DType::kQ4_K:
      return {"Q4_K", 256, 144};
    case DType::kQ5_K:
      return {"Q5_K", 256, 176};
    case DType::kQ6_K:
      return {"Q6_K", 256, 210};
    case DType::kI8:
      return {"I8", 1, 1};
    case DType::kQ2_K:
      return {"Q2_K", 256, 84};
    case DType::kQ3_K:
      return {"Q3_K", 256, 110};
    case DType::kIQ4NL:
      return {"IQ4_NL", 32, 18};
    case DType::kIQ4XS:
      return {"IQ4_XS", 256, 136};
    case DType::kMXFP4:
      return {"MXFP4", 32, 17};
  }
  return {"?", 1, 1};
}

// Bytes of `count` elements. REQUIRES: count is a multiple of the block.
constexpr size_t dtype_bytes(DType type, size_t count) {
  const DTypeInfo info = dtype_info(type);
  return count / info.block * info.block_bytes;
}

inline float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t f32_to_bf16(float value) {  // round to nearest even; NaN stays NaN
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 64);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// By bits, without branches: a cast of _Float16 is a call where the machine's own instruction may not be used.
inline float f16_to_f32(uint16_t bits) {
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;      // the exponent's bias; denormals come out right
  const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0;  // infinity and NaN
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
}

// At any address, little-endian.
inline float load_f16(const uint8_t* p) { return f16_to_f32(static_cast<uint16_t>(p[0] | p[1] << 8)); }

inline uint16_t f32_to_f16(float value) {  // round to nearest even; NaN stays NaN
  const uint32_t all = std::bit_cast<uint32_t>(value), magnitude = all & 0x7fffffffu, sign = all >> 16 & 0x8000u;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
  // Below 2^-14: adding 1/2 makes the hardware round at the right bit.
  const uint32_t tiny = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t finite = magnitude < (113u << 23) ? tiny : normal;
  return static_cast<uint16_t>((magnitude >= (143u << 23) ? special : finite) | sign);
}

}  // namespace kvilt
