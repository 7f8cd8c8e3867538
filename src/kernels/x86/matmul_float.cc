// kernels/x86/matmul_float.cc: F32, F16 and BF16 weights x fp32 activations; built once per ISA.
// Invariants: acc = fma(w[k], x[k], acc) over k in order, one accumulator an output: the same bits for any shape.
// Cost:       F16 and BF16 are widened in registers, once for all rows of a row block.
#include "kernels/x86/kernels.h"
#include "kernels/x86/linear_simd.h"

namespace kvilt::KVILT_ISA {

using x86::MatmulPart;

namespace {

// Weights of kLanes rows at k and k + 1 (one step reads a pair, since BF16 is packed in pairs).
template <DType type>
struct Packed {
  const std::byte* block;
  int lane;

  template <int odd>
  KVILT_INLINE VF at(const Packed& p, int64_t pair) {
    if constexpr (type == DType::kF32) {
      return load(reinterpret_cast<const float*>(p.block) + (2 * pair + odd) * 16 + p.lane);
    } else if constexpr (type == DType::kF16) {
      return load_half(p.block + ((2 * pair + odd) * 16 + p.lane) * 2);
    } else {
      const VI both = load_bytes(p.block + (pair * 16 + p.lane) * 4);
      if constexpr (odd) return as_float(and_i(both, set_i(static_cast<int>(0xffff0000u))));
      return as_float(shift_left<16>(both));
    }
  }
};

template <DType type, int m, int nv, int odd>
KVILT_INLINE void step(const Packed<type> (&w)[nv], int64_t pair, const float* x, VF (&sum)[m][nv]) {
  VF weights[nv];
  KVILT_UNROLL
  for (int v = 0; v < nv; ++v) weights[v] = Packed<type>::template at<odd>(w[v], pair);
  KVILT_UNROLL
  for (int r = 0; r < m; ++r) {
    const VF xr = set(x[odd * m + r]);
    KVILT_UNROLL
    for (int v = 0; v < nv; ++v) sum[r][v] = fma(weights[v], xr, sum[r][v]);
  }
}

struct TileAt {
  const MatmulPart* part;
  const float* x;  // of the row block: per k m floats
  int64_t row, n;
};

// m rows x nv vectors of columns.
template <DType type, int m, int nv>
void run_tile(const TileAt& at) {
  const MatmulPart& part = *at.part;
  Packed<type> w[nv];
  VF sum[m][nv];
  KVILT_UNROLL
  for (int v = 0; v < nv; ++v) {
    const int64_t n = at.n + v * kLanes;
    w[v] = {part.w + n / 16 * part.block_bytes, static_cast<int>(n % 16)};
    claim(part.y + at.row * part.y_stride + n, part.y_stride, m);
    KVILT_UNROLL
    for (int r = 0; r < m; ++r) sum[r][v] = zero_f();
  }
  const float* x = at.x;
  for (int64_t pair = 0; pair < part.K / 2; ++pair, x += 2 * m) {
    step<type, m, nv, 0>(w, pair, x, sum);
    step<type, m, nv, 1>(w, pair, x, sum);
  }
  if (part.K % 2 != 0) step<type, m, nv, 0>(w, part.K / 2, x, sum);
  KVILT_UNROLL
  for (int r = 0; r < m; ++r) {
    KVILT_UNROLL
    for (int v = 0; v < nv; ++v) {
      const int64_t n = at.n + v * kLanes;
      const int64_t left = part.N - n;
      finish(sum[r][v], {part.y + (at.row + r) * part.y_stride + n, part.bias == nullptr ? nullptr : part.bias + n,
                         static_cast<int>(left < kLanes ? left : kLanes), part.accumulate});
    }
  }
}

template <DType type, int nv, int m>
KVILT_INLINE void run_rows(int64_t rows, const TileAt& at) {
  if constexpr (m > 0) {
    if (rows == m) return run_tile<type, m, nv>(at);
    run_rows<type, nv, m - 1>(rows, at);
  }
}

template <DType type, int nv, int max_rows>
KVILT_INLINE void run_blocks(const MatmulPart& part, int64_t n) {
  const int64_t base = part.rows / part.blocks, more = part.rows % part.blocks;
  for (int64_t b = part.block_begin; b < part.block_end; ++b) {
    const int64_t row = b * base + (b < more ? b : more);
    run_rows<type, nv, max_rows>(base + (b < more),
                                 {&part, reinterpret_cast<const float*>(part.x) + row * part.K, row, n});
  }
}

template <DType type>
void matmul(const MatmulPart& part) {
  const int64_t n_end = (part.n_end + 15) / 16 * 16;  // blocks are whole; lanes beyond N are zero
  int64_t n = part.n_begin;
  if (part.rows <= 2) {  // few sums a column: more columns at once hide the latency of adding to them
    for (; n + 4 * kLanes <= n_end; n += 4 * kLanes) run_blocks<type, 4, 2>(part, n);
  }
  for (; n + 2 * kLanes <= n_end; n += 2 * kLanes) run_blocks<type, 2, kMaxRows>(part, n);
  if (n < n_end) run_blocks<type, 1, kMaxRows>(part, n);
}

}  // namespace

namespace floats {
void matmul_f32(const MatmulPart& part) { matmul<DType::kF32>(part); }
void matmul_f16(const MatmulPart& part) { matmul<DType::kF16>(part); }
void matmul_bf16(const MatmulPart& part) { matmul<DType::kBF16>(part); }
}  // namespace floats

}  // namespace kvilt::KVILT_ISA
