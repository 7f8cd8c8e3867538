// tensor/requantize.h: formats of files that have no kernels of their own, as a format that has.
// Idea:     the quants of most small formats are among those of a larger one, under the same scale. Then the values stay
//           the same to the bit, and what it costs is memory:
//             Q3_K   -> Q6_K  exact: quants and sub-block scales fit               3.4 -> 6.6 bits
//             IQ4_NL -> Q8_0  exact: its 16 values are signed bytes                4.5 -> 8.5
//             MXFP4  -> Q5_0  exact where its power of two is an fp16 (2^-24 to    4.25 -> 5.5
//                             2^15: every weight that matters)
//             IQ4_XS -> Q8_0  a sub-block's scale is rounded to fp16: 2^-11        4.25 -> 8.5
//             Q2_K   -> Q8_0  rounded anew: 1/254 of the largest of 32 values,     2.6 -> 8.5
//                             where a step of Q2_K is about a third of it
// Threads:  pure.
// Not here: what the formats are (small_blocks.h, dequantize.cc), the kernels' layout (kernels/x86/pack.cc).
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace kvilt {

// The type as which kernels see a weight of `dtype`: mostly itself.
DType kernel_type(DType dtype);

// `count` elements of `dtype` as blocks of kernel_type(dtype). REQUIRES: that is another type; count is a multiple of
// dtype's block.
void requantize(DType dtype, const std::byte* data, size_t count, std::byte* out);

}  // namespace kvilt
