// kernels/reference/dequantize.h: one row of a quantised weight as fp32, the plain way.
// Role:  the reference matmul, and the yardstick for what pack() makes of the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace kvilt::reference {

// out[i] for i in [0, count). REQUIRES: count is a multiple of the dtype's block; dtype is a weight type (not kI8).
void dequantize_row(DType dtype, const std::byte* row, int64_t count, float* out);

}  // namespace kvilt::reference
