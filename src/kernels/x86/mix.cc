// kernels/x86/mix.cc: y = w . x in fp32, compiled per ISA. The matrices are small (tens to hundreds of rows) and not
// packed: 6 rows of y (AVX2: 2) times 4 vectors stay in registers while k runs. Of many rows all pass over kDepth rows of
// x, 32 KB (AVX2: 8) that stay in L1, before the next ones: the sums wait in y, and each is still one sum in the order of
// k. 448 rows over 512 k on a Xeon with AMX: 4 rows and 64 k reach .51 of the multiply-adds' peak, 6 and 128 .64.
#include "kernels/x86/mix.h"

#include "kernels/x86/attend_simd.h"

namespace kvilt::KVILT_ISA {
namespace {

constexpr int64_t kDepth = kTileVecs == 4 ? 128 : 64;

struct Steps {
  int64_t first, last;  // rows of x
};

template <int R, int C>  // rows, vectors
KVILT_INLINE void tile(const float* w, int64_t w_stride, const float* x, int64_t x_stride, const Steps& steps,
                       int64_t y_stride, float* y) {
  Vec sum[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) sum[r][c] = steps.first == 0 ? zero() : load(y + r * y_stride + c * kVec);
  }
  for (int64_t k = steps.first; k < steps.last; ++k) {
    for (int r = 0; r < R; ++r) {
      const Vec scale = set1(w[r * w_stride + k]);
      for (int c = 0; c < C; ++c) sum[r][c] = fma(scale, load(x + k * x_stride + c * kVec), sum[r][c]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) store(y + r * y_stride + c * kVec, sum[r][c]);
  }
}

// Columns of y from n on, C vectors at a time; returns the first one left over.
template <int C>
KVILT_INLINE int64_t columns(const float* w, int64_t w_stride, const float* x, int64_t x_stride, const x86::MixOut& out,
                             int64_t n) {
  constexpr int kRows = kTileVecs == 4 ? 6 : 2;  // with C = 4: 24 sums of 32 registers, or 8 of 16
  const int64_t depth = out.M > kRows ? kDepth : out.K;
  for (; n + C * kVec <= out.N; n += C * kVec) {
    Steps steps{0, 0};
    do {
      steps = {steps.last, steps.last + depth < out.K ? steps.last + depth : out.K};
      float* y = out.y + n;
      int64_t m = 0;
      for (; m + kRows <= out.M; m += kRows, y += kRows * out.y_stride) {
        tile<kRows, C>(w + m * w_stride, w_stride, x + n, x_stride, steps, out.y_stride, y);
      }
      for (; m < out.M; ++m, y += out.y_stride) {
        tile<1, C>(w + m * w_stride, w_stride, x + n, x_stride, steps, out.y_stride, y);
      }
    } while (steps.last < out.K);
  }
  return n;
}

}  // namespace

void mix(const float* w, int64_t w_stride, const float* x, int64_t x_stride, x86::MixOut out) {
  int64_t n = columns<4>(w, w_stride, x, x_stride, out, 0);
  n = columns<1>(w, w_stride, x, x_stride, out, n);
  for (; n < out.N; ++n) {
    for (int64_t m = 0; m < out.M; ++m) {
      float sum = 0;
      for (int64_t k = 0; k < out.K; ++k) sum = __builtin_fmaf(w[m * w_stride + k], x[k * x_stride + n], sum);
      out.y[m * out.y_stride + n] = sum;
    }
  }
}

}  // namespace kvilt::KVILT_ISA
