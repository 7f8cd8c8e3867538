// kernels/x86/mix.h: small fp32 products of row-major matrices, per ISA; the contract is Backend::mix.
#pragma once

#include <cstdint>

#include "kernels/x86/isa.h"

namespace kvilt::x86 {
// y is M x N, w is M x K, x is K x N.
struct MixOut {
  float* y;
  int64_t y_stride, M, K, N;
};
}  // namespace kvilt::x86

#define KVILT_DECLARE(isa)                                                                       \
  namespace kvilt::isa {                                                                         \
  void mix(const float* w, int64_t w_stride, const float* x, int64_t x_stride, x86::MixOut out); \
  }
KVILT_EACH_ATTEND_ISA(KVILT_DECLARE)
#undef KVILT_DECLARE
