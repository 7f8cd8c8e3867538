// base/exp_small.h: exp of numbers that are not above zero, as plain arithmetic without a branch: the compiler makes
// vectors of a loop that does nothing else. Source: Cephes' expf.
#pragma once

#include <bit>
#include <cstdint>

namespace kvilt {

// x in [-87, 0]
constexpr float exp_in_range(float x) {
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f, kRound = 12582912.f;
  const float shifted = x * kLog2e + kRound;  // the whole number lands in the low mantissa bits
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  const uint32_t power = std::bit_cast<uint32_t>(shifted) << 23;  // n * 2^23: added to the exponent
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + power);
}

// exp(x) for x <= 0, relative error below 3e-7 down to e^-71; 0 below -87 and for what is not a number. Numbers below
// zero are larger the larger their bits are: it is bits that are compared, since the compiler would branch around
// arithmetic that depends on a comparison of floats.
inline float exp_small(float x) {
  constexpr float kLeast = -87;
  const int32_t bits = static_cast<int32_t>(std::bit_cast<uint32_t>(x) | 0x80000000u);
  constexpr int32_t kLeastBits = std::bit_cast<int32_t>(kLeast);
  constexpr float kOfLeast = exp_in_range(kLeast);
  return exp_in_range(std::bit_cast<float>(bits < kLeastBits ? bits : kLeastBits)) - kOfLeast;
}

}  // namespace kvilt
