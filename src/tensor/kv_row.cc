// tensor/kv_row.cc: the formats of kv_row.h, in loops without branches or calls, of which the compiler makes vectors.
#include "tensor/kv_row.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace kvilt {
namespace {

struct Name {
  std::string_view name;
  DType dtype;
};
constexpr std::array<Name, 4> kNames = {
    {{"f32", DType::kF32}, {"f16", DType::kF16}, {"bf16", DType::kBF16}, {"int8", DType::kI8}}};

void encode_f16(int E, const float* row, uint16_t* out) {
  constexpr float kMost = 65504;
  for (int e = 0; e < E; ++e) out[e] = f32_to_f16(std::min(std::max(row[e], -kMost), kMost));
}

void encode_int8(int E, const float* row, int8_t* out) {
  float most = 0;
  for (int e = 0; e < E; ++e) most = std::max(most, std::abs(row[e]));
  const float scale = most / 127, inverse = most > 0 ? 127 / most : 0;
  for (int e = 0; e < E; ++e) {
    constexpr float kMagic = 12582912;  // 1.5 * 2^23: the sum's low bits are the number rounded to an integer
    out[e] = static_cast<int8_t>(std::bit_cast<uint32_t>(row[e] * inverse + kMagic) & 255);
  }
  std::memcpy(out + E, &scale, sizeof scale);
}

void decode_int8(int E, const int8_t* in, float* row) {
  float scale;
  std::memcpy(&scale, in + E, sizeof scale);
  for (int e = 0; e < E; ++e) row[e] = scale * static_cast<float>(in[e]);
}

}  // namespace

std::optional<DType> kv_type_of(std::string_view name) {
  for (const Name& entry : kNames) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

std::string_view kv_type_name(DType dtype) {
  for (const Name& entry : kNames) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "?";
}

void encode_kv_row(DType dtype, int E, const float* row, void* bytes) {
  CHECK(is_kv_type(dtype));
  auto* halves = static_cast<uint16_t*>(bytes);
  if (dtype == DType::kF32) {
    std::memcpy(bytes, row, E * sizeof(float));
  } else if (dtype == DType::kF16) {
    encode_f16(E, row, halves);
  } else if (dtype == DType::kBF16) {
    for (int e = 0; e < E; ++e) halves[e] = f32_to_bf16(row[e]);
  } else {
    encode_int8(E, row, static_cast<int8_t*>(bytes));
  }
}

void decode_kv_row(DType dtype, int E, const void* bytes, float* row) {
  CHECK(is_kv_type(dtype));
  const auto* halves = static_cast<const uint16_t*>(bytes);
  if (dtype == DType::kF32) {
    std::memcpy(row, bytes, E * sizeof(float));
  } else if (dtype == DType::kF16) {
    for (int e = 0; e < E; ++e) row[e] = f16_to_f32(halves[e]);
  } else if (dtype == DType::kBF16) {
    for (int e = 0; e < E; ++e) row[e] = bf16_to_f32(halves[e]);
  } else {
    decode_int8(E, static_cast<const int8_t*>(bytes), row);
  }
}

}  // namespace kvilt
