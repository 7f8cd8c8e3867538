// tensor/kv_row.h: one key or value of E floats as the KV pool stores it, and back. Only this file knows the formats;
// kernels decode many at once in their own way and are compared with it.
// Formats:    kF32, kF16 (beyond 65504: 65504), kBF16: E elements, rounded to nearest even.
//             kI8: E signed bytes, then their scale as fp32: x = scale * byte, scale = max |x| / 127. One scale a key
//             and one a value, so that a row can be written, moved and rotated by itself.
// Invariants: a row depends on its E floats only; rows of a page are kv_row_bytes() apart, aligned to nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "tensor/dtype.h"

namespace kvilt {

constexpr bool is_kv_type(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kI8;
}

// f32, f16, bf16 or int8, as flags and reports spell them.
std::optional<DType> kv_type_of(std::string_view name);
std::string_view kv_type_name(DType dtype);

// REQUIRES of these: is_kv_type(dtype).
constexpr int64_t kv_row_bytes(DType dtype, int E) {
  return static_cast<int64_t>(dtype_bytes(dtype, E)) + (dtype == DType::kI8 ? 4 : 0);
}
void encode_kv_row(DType dtype, int E, const float* row, void* bytes);
void decode_kv_row(DType dtype, int E, const void* bytes, float* row);

}  // namespace kvilt
