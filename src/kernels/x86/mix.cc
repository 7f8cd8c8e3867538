// kernels/x86/mix.cc: y = w . x in fp32, compiled per ISA. The matrices are small (tens to hundreds of rows) and not
// packed: 2 rows of y times 4 vectors stay in registers while k runs.
#include "kernels/x86/mix.h"

#include "kernels/x86/attend_simd.h"

namespace kvilt::KVILT_ISA {
namespace {

template <int R, int C>  // rows, vectors
KVILT_INLINE void tile(const float* w, int64_t w_stride, const float* x, int64_t x_stride, const x86::MixOut& out,
                       float* y) {
  Vec sum[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) sum[r][c] = zero();
  }
  for (int64_t k = 0; k < out.K; ++k) {
    for (int r = 0; r < R; ++r) {
      const Vec scale = set1(w[r * w_stride + k]);
      for (int c = 0; c < C; ++c) sum[r][c] = fma(scale, load(x + k * x_stride + c * kVec), sum[r][c]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) store(y + r * out.y_stride + c * kVec, sum[r][c]);
  }
}

}  // namespace

void mix(const float* w, int64_t w_stride, const float* x, int64_t x_stride, x86::MixOut out) {
  constexpr int kRows = 2, kVecs = 4;
  int64_t n = 0;
  const auto columns = [&](auto block, int64_t width) {
    for (; n + width <= out.N; n += width) {
      int64_t m = 0;
      for (; m + kRows <= out.M; m += kRows) {
        tile<kRows, decltype(block)::value>(w + m * w_stride, w_stride, x + n, x_stride, out,
                                            out.y + m * out.y_stride + n);
      }
      for (; m < out.M; ++m) {
        tile<1, decltype(block)::value>(w + m * w_stride, w_stride, x + n, x_stride, out, out.y + m * out.y_stride + n);
      }
    }
  };
  struct Wide {
    static constexpr int value = kVecs;
  };
  struct One {
    static constexpr int value = 1;
  };
  columns(Wide{}, kVecs * kVec);
  columns(One{}, kVec);
  for (; n < out.N; ++n) {
    for (int64_t m = 0; m < out.M; ++m) {
      float sum = 0;
      for (int64_t k = 0; k < out.K; ++k) sum = __builtin_fmaf(w[m * w_stride + k], x[k * x_stride + n], sum);
      out.y[m * out.y_stride + n] = sum;
    }
  }
}

}  // namespace kvilt::KVILT_ISA
