// tensor/kv_row.h: one key or value of E floats as the KV pool stores it, and back. The one place that knows the formats;
// kernels decode many at once in their own way and are compared with this.
#pragma once

#include "tensor/dtype.h"

namespace kvilt {

// REQUIRES: dtype is a KV type (kF32, kF16, kBF16); bytes holds dtype_bytes(dtype, E).
void encode_kv_row(DType dtype, int E, const float* row, void* bytes);
void decode_kv_row(DType dtype, int E, const void* bytes, float* row);

}  // namespace kvilt
