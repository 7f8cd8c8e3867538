// kernels/x86/peak.cc: what one core can do at most with the instructions of this ISA: register-only loops; built once
// per ISA.
// Role: the bound that benchmarks compare with (kernels/peak.h).
#include "kernels/x86/kernels.h"
#include "kernels/x86/linear_simd.h"

namespace kvilt::KVILT_ISA {
namespace {

constexpr int kChains = 12;                // independent sums: enough to hide the latency of any of these instructions
constexpr int64_t kLine = 4 * kLanes * 4;  // bytes read at once

// Without vpdpbusd: products of pairs and their sum in 16 bits, which is what the kernels come down to (matmul.cc). In
// assembly, or the compiler multiplies once for all chains.
KVILT_INLINE VI dot(VI acc, VI w, VI x) {
#ifdef KVILT_VNNI
  return dot_vnni(acc, w, x);
#else
  VI pairs;
  asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(acc), "=&x"(pairs) : "x"(w), "x"(x));
  return acc;
#endif
}

}  // namespace

namespace peak {

// Each returns operations done (a multiply and an add are two); *sink keeps the work alive.
double int8_dots(int64_t rounds, int* sink) {
  VI acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = set_i(i);
  VI w = set_i(*sink), x = set_i(*sink + 1);
  for (int64_t n = 0; n < rounds; ++n) {
    KVILT_UNROLL
    for (int i = 0; i < kChains; ++i) acc[i] = dot(acc[i], w, x);
    asm volatile("" : "+x"(w), "+x"(x));
  }
  for (int i = 0; i < kChains; ++i) *sink += static_cast<int>(sum(to_float(acc[i])));
  return static_cast<double>(rounds) * kChains * kLanes * 4 * 2;
}

double fmas(int64_t rounds, int* sink) {
  VF acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = set(static_cast<float>(i));
  VF w = set(0.5f), x = set(static_cast<float>(*sink & 1));
  for (int64_t n = 0; n < rounds; ++n) {
    KVILT_UNROLL
    for (int i = 0; i < kChains; ++i) acc[i] = fma(acc[i], w, x);
    asm volatile("" : "+x"(w), "+x"(x));
  }
  for (int i = 0; i < kChains; ++i) *sink += static_cast<int>(sum(acc[i]));
  return static_cast<double>(rounds) * kChains * kLanes * 2;
}

// Reads [data, data + bytes), a multiple of 256, in one line, as weights are; returns the bytes read.
double read(const std::byte* data, int64_t bytes, int* sink) {
  VI acc[4] = {zero_i(), zero_i(), zero_i(), zero_i()};
  for (int64_t at = 0; at < bytes; at += kLine) {
    KVILT_UNROLL
    for (int i = 0; i < 4; ++i) acc[i] = xor_i(acc[i], load_bytes(data + at + i * kLanes * 4));
  }
  for (int i = 0; i < 4; ++i) *sink += static_cast<int>(sum(to_float(acc[i])));
  return static_cast<double>(bytes);
}

}  // namespace peak
}  // namespace kvilt::KVILT_ISA
