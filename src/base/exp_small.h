// base/exp_small.h: exp of numbers that are not above zero, as plain arithmetic: the compiler makes vectors of loops of it
// (0.1 ms for 151,936 numbers with SSE2 alone; std::exp takes ten times as long). Source: Cephes' expf.
#pragma once

#include <cstdint>
#include <cstring>

namespace kvilt {

// exp(x) for x <= 0, relative error below 3e-7; 0 below -87 and for what is not a number.
inline float exp_small(float x) {
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f, kRound = 12582912.f;
  const float clipped = x >= -87.f ? x : -87.f;
  const float shifted = clipped * kLog2e + kRound;  // the whole number lands in the low mantissa bits
  const float n = shifted - kRound;
  const float r = (clipped - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  int32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  const int32_t power = static_cast<int32_t>(static_cast<uint32_t>(bits) << 23);  // n * 2^23: added to the exponent
  int32_t out;
  std::memcpy(&out, &p, sizeof out);
  out += power;
  float scaled;
  std::memcpy(&scaled, &out, sizeof scaled);
  return x >= -87.f ? scaled : 0.f;
}

}  // namespace kvilt
