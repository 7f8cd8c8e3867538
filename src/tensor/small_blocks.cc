#include "tensor/small_blocks.h"

#include <bit>

namespace kvilt::small_blocks {
namespace {

// The 16 values that a nibble of IQ4 names, and of MXFP4 (e2m1, doubled).
constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 32 elements of 16 bytes: byte j holds element j in its low and element j + 16 in its high nibble.
void look_up(const uint8_t* nibbles, const int8_t (&values)[16], int8_t* q) {
  for (int j = 0; j < 16; ++j) {
    q[j] = values[nibbles[j] & 15];
    q[j + 16] = values[nibbles[j] >> 4];
  }
}

}  // namespace

Quants32 iq4_nl(const uint8_t* block) {
  Quants32 out;
  look_up(block + 2, kIq4, out.q);
  return out;
}

Quants32 mxfp4(const uint8_t* block) {
  Quants32 out;
  look_up(block + 1, kE2m1, out.q);
  return out;
}

float mxfp4_scale(uint8_t exponent) {
  const uint32_t bits = exponent < 2 ? uint32_t{0x00200000} << exponent : uint32_t{exponent - 1u} << 23;
  return std::bit_cast<float>(bits);
}

// 16 bytes of scales (low) and mins (high); 64 bytes of bit pairs: 32 bytes hold 128 elements, pair n of byte j element
// 32 n + j.
Quants256 q2_k(const uint8_t* block) {
  Quants256 out;
  for (int s = 0; s < 16; ++s) {
    out.scale[s] = static_cast<int8_t>(block[s] & 15);
    out.min[s] = block[s] >> 4;
  }
  for (int i = 0; i < 256; ++i)
    out.q[i] = static_cast<int8_t>(block[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3);
  return out;
}

// 32 bytes of high bits (of element 32 n + j: bit n of byte j; set: the quant is not negative), 64 bytes of bit pairs as
// in Q2_K, 12 bytes of six-bit scales: nibbles of the first eight, pairs of the last four on top.
Quants256 q3_k(const uint8_t* block) {
  Quants256 out = {};
  const uint8_t *pairs = block + 32, *scales = block + 96;
  for (int s = 0; s < 16; ++s) {
    const int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4, high = scales[8 + s % 4] >> (s / 4 * 2) & 3;
    out.scale[s] = static_cast<int8_t>((low | high << 4) - 32);
  }
  for (int i = 0; i < 256; ++i) {
    const int pair = pairs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    const bool high = block[i % 32] >> (i / 32) & 1;
    out.q[i] = static_cast<int8_t>(high ? pair : pair - 4);
  }
  return out;
}

// d; 16 bits with the top two bits of each sub-block of 32's scale; 4 bytes with their low nibbles; 128 bytes of
// nibbles, 16 for each 32 elements.
Quants256 iq4_xs(const uint8_t* block) {
  Quants256 out = {};
  const int highs = block[2] | block[3] << 8;
  for (int s = 0; s < 8; ++s) {
    const int low = block[4 + s / 2] >> (s % 2 * 4) & 15;
    out.scale[2 * s] = out.scale[2 * s + 1] = static_cast<int8_t>((low | (highs >> (2 * s) & 3) << 4) - 32);
    look_up(block + 8 + 16 * s, kIq4, out.q + 32 * s);
  }
  return out;
}

}  // namespace kvilt::small_blocks
