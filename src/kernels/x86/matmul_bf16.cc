// kernels/x86/matmul_bf16.cc: BF16 weights x rows rounded to bf16, pairs of k multiplied at once (vdpbf16ps).
// Role:       Activations::kAuto and kBF16 where bf16_dots_pay(); matmul_bf16_tiles.cc serves machines with AMX,
//             matmul_float.cc all others.
// Invariants: one accumulator an output, pairs of k in order, so a row's bits depend on the row only. The instruction
//             rounds both products of a pair into the sum one after the other; it takes subnormals as 0.
// Cost:       a dot of 32 products a cycle (Zen 4), twice fp32's; nothing is widened.
#include "kernels/x86/kernels.h"
#include "kernels/x86/linear_simd.h"

namespace kvilt::KVILT_ISA {
namespace {

using x86::MatmulPart;
using x86::RowsIn;

KVILT_INLINE __m512bh pairs(VI v) { return (__m512bh)v; }

struct TileAt {
  const MatmulPart* part;
  const std::byte* x;  // of the row block: per pair of k m words
  int64_t row, n;
};

// m rows x nv vectors of columns.
template <int m, int nv>
void run_tile(const TileAt& at) {
  const MatmulPart& part = *at.part;
  const std::byte* w[nv];
  VF sum[m][nv];
  KVILT_UNROLL
  for (int v = 0; v < nv; ++v) {
    w[v] = part.w + (at.n / 16 + v) * part.block_bytes;
    claim(part.y + at.row * part.y_stride + at.n + v * kLanes, part.y_stride, m);
    KVILT_UNROLL
    for (int r = 0; r < m; ++r) sum[r][v] = zero_f();
  }
  const std::byte* x = at.x;
  for (int64_t pair = 0; pair < (part.K + 1) / 2; ++pair, x += 4 * m) {
    VI weights[nv];
    KVILT_UNROLL
    for (int v = 0; v < nv; ++v) weights[v] = load_bytes(w[v] + pair * 64);
    KVILT_UNROLL
    for (int r = 0; r < m; ++r) {
      const VI row = set_i(load_word(x + r * 4));
      KVILT_UNROLL
      for (int v = 0; v < nv; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], pairs(weights[v]), pairs(row));
    }
  }
  KVILT_UNROLL
  for (int r = 0; r < m; ++r) {
    KVILT_UNROLL
    for (int v = 0; v < nv; ++v) {
      const int64_t n = at.n + v * kLanes, left = part.N - n;
      finish(sum[r][v], {part.y + (at.row + r) * part.y_stride + n, part.bias == nullptr ? nullptr : part.bias + n,
                         static_cast<int>(left < kLanes ? left : kLanes), part.accumulate});
    }
  }
}

template <int nv, int m>
KVILT_INLINE void run_rows(int64_t rows, const TileAt& at) {
  if constexpr (m > 0) {
    if (rows == m) return run_tile<m, nv>(at);
    run_rows<nv, m - 1>(rows, at);
  }
}

template <int nv, int max_rows>
KVILT_INLINE void run_blocks(const MatmulPart& part, int64_t n) {
  const int64_t base = part.rows / part.blocks, more = part.rows % part.blocks, row_bytes = x86::pair_row_bytes(part.K);
  for (int64_t b = part.block_begin; b < part.block_end; ++b) {
    const int64_t row = b * base + (b < more ? b : more);
    run_rows<nv, max_rows>(base + (b < more), {&part, part.x + row * row_bytes, row, n});
  }
}

void matmul(const MatmulPart& part) {
  const int64_t n_end = (part.n_end + 15) / 16 * 16;  // blocks are whole; lanes beyond N are zero
  int64_t n = part.n_begin;
  if (part.rows <= 2) {  // few sums a column: more columns at once hide the latency of adding to them
    for (; n + 4 * kLanes <= n_end; n += 4 * kLanes) run_blocks<4, 2>(part, n);
  }
  for (; n + 2 * kLanes <= n_end; n += 2 * kLanes) run_blocks<2, kMaxRows>(part, n);
  if (n < n_end) run_blocks<1, kMaxRows>(part, n);
}

// One row block as words of two bf16, rounded to nearest even; beyond an odd K a zero.
void pack_rows(const RowsIn& in, std::byte* out) {
  for (int64_t r = 0; r < in.rows; ++r) {
    const float* x = in.x + r * in.stride;
    for (int64_t k = 0; k < in.cols; k += 2 * kLanes) {
      const int64_t left = in.cols - k;
      const VF low = load_some(x + k, static_cast<int>(left < kLanes ? left : kLanes));
      const int more = static_cast<int>(left < kLanes ? 0 : left - kLanes < kLanes ? left - kLanes : kLanes);
      const VF high = load_some(x + k + kLanes, more);
      int32_t words[kLanes];
      store_bytes(words, (VI)_mm512_cvtne2ps_pbh(high, low));
      const int64_t count = (left + 1) / 2 < kLanes ? (left + 1) / 2 : kLanes;
      for (int64_t i = 0; i < count; ++i) std::memcpy(out + ((k / 2 + i) * in.rows + r) * 4, &words[i], 4);
    }
  }
}

}  // namespace

extern const x86::PairKernels kPairs = {kMaxRows, pack_rows, matmul};

}  // namespace kvilt::KVILT_ISA
