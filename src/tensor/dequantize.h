// tensor/dequantize.h: stored elements of any type as fp32, the plain way: embedding rows, norms, the reference matmul,
// and the yardstick for what fast kernels make of the same bytes.
#pragma once

#include <cstddef>

#include "tensor/dtype.h"

namespace kvilt {

// REQUIRES: `count` elements of `dtype` at data, a multiple of its block; dtype is a weight type (not kI8).
void dequantize(DType dtype, const std::byte* data, size_t count, float* out);

}  // namespace kvilt
