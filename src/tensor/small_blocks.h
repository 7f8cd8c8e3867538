// tensor/small_blocks.h: the parts of a block of the file formats that have no kernels of their own: Q2_K, Q3_K, IQ4_NL,
// IQ4_XS, MXFP4 (docs/formats/gguf.md#blocks).
// Role:     dequantize.cc makes floats of the parts, requantize.cc blocks of another format. So a format is read in one
//           place.
// Threads:  pure.
// Not here: what is done with the numbers.
#pragma once

#include <cstdint>

namespace kvilt::small_blocks {

// A block of 32: q times a scale.
struct Quants32 {
  int8_t q[32];
};
// A block of 256 in 16 sub-blocks of 16 elements: q of sub-block j times its scale, less its min (Q2_K).
struct Quants256 {
  int8_t q[256];
  int8_t scale[16];
  uint8_t min[16];
};

Quants32 iq4_nl(const uint8_t* block);  // behind an fp16 scale
Quants32 mxfp4(const uint8_t* block);   // behind an exponent: see mxfp4_scale(); twice the format's values, so integers
// The scale of twice a value: 2^(exponent - 128), halved once more as 0 and 1 are subnormal.
float mxfp4_scale(uint8_t exponent);
Quants256 q2_k(const uint8_t* block);    // scale 0..15, min 0..15, q 0..3; fp16 d and dmin at bytes 80 and 82
Quants256 q3_k(const uint8_t* block);    // scale -32..31, q -4..3; fp16 d at byte 108
Quants256 iq4_xs(const uint8_t* block);  // scale -32..31, the same for two sub-blocks; fp16 d at byte 0

}  // namespace kvilt::small_blocks
