#include "tensor/kv_row.h"

#include <cstring>

#include "base/check.h"

namespace kvilt {

void encode_kv_row(DType dtype, int E, const float* row, void* bytes) {
  if (dtype == DType::kF32) {
    std::memcpy(bytes, row, static_cast<size_t>(E) * sizeof(float));
    return;
  }
  CHECK(dtype == DType::kF16 || dtype == DType::kBF16);
  auto* out = static_cast<uint16_t*>(bytes);
  for (int e = 0; e < E; ++e) out[e] = dtype == DType::kF16 ? f32_to_f16(row[e]) : f32_to_bf16(row[e]);
}

void decode_kv_row(DType dtype, int E, const void* bytes, float* row) {
  if (dtype == DType::kF32) {
    std::memcpy(row, bytes, static_cast<size_t>(E) * sizeof(float));
    return;
  }
  CHECK(dtype == DType::kF16 || dtype == DType::kBF16);
  const auto* in = static_cast<const uint16_t*>(bytes);
  for (int e = 0; e < E; ++e) row[e] = dtype == DType::kF16 ? f16_to_f32(in[e]) : bf16_to_f32(in[e]);
}

}  // namespace kvilt
