// kernels/x86/matmul_float.cc: F32, F16 and BF16 weights x fp32 activations; built once per ISA.
// Invariants: acc = fma(w[k], x[k], acc) over k in order, one accumulator an output: the same bits for any shape.
// Cost:       F16 and BF16 are widened in registers for few rows, into a panel of fp32 for many.
#include "kernels/x86/kernels.h"
#include "kernels/x86/linear_simd.h"

namespace kvilt::KVILT_ISA {

using x86::MatmulPart;

namespace {

constexpr int kDirectRows = 2 * kMaxRows;

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

struct Panel {
  const float* data;
  int vector;

  template <int odd>
  KVILT_INLINE VF at(const Panel& p, int64_t pair) {
    return load(p.data + ((2 * pair + odd) * kPanelVectors + p.vector) * kLanes);
  }
};

template <class Source, int m, int nv, int odd>
KVILT_INLINE void step(const Source (&w)[nv], int64_t pair, const float* x, VF (&sum)[m][nv]) {
  VF weights[nv];
  KVILT_UNROLL
  for (int v = 0; v < nv; ++v) weights[v] = Source::template at<odd>(w[v], pair);
  KVILT_UNROLL
  for (int r = 0; r < m; ++r) {
    const VF xr = set(x[(2 * pair + odd) * m + r]);
    KVILT_UNROLL
    for (int v = 0; v < nv; ++v) sum[r][v] = fma(weights[v], xr, sum[r][v]);
  }
}

struct TileAt {
  const MatmulPart* part;
  const float* x;  // of the row block: per k m floats
  int64_t row, n;
};

template <class Source, int m, int nv>
void run_tile(const Source (&w)[nv], const TileAt& at) {
  VF sum[m][nv];
  KVILT_UNROLL
  for (int r = 0; r < m; ++r) {
    KVILT_UNROLL
    for (int v = 0; v < nv; ++v) sum[r][v] = zero_f();
  }
  const int64_t K = at.part->K;
  for (int64_t pair = 0; pair < K / 2; ++pair) {
    step<Source, m, nv, 0>(w, pair, at.x, sum);
    step<Source, m, nv, 1>(w, pair, at.x, sum);
  }
  if (K % 2 != 0) step<Source, m, nv, 0>(w, K / 2, at.x, sum);
  for (int r = 0; r < m; ++r) {
    for (int v = 0; v < nv; ++v) {
      const int64_t n = at.n + v * kLanes;
      const int64_t left = at.part->N - n;
      finish(sum[r][v],
             {at.part->y + (at.row + r) * at.part->y_stride + n, at.part->bias == nullptr ? nullptr : at.part->bias + n,
              static_cast<int>(left < kLanes ? left : kLanes), at.part->accumulate});
    }
  }
}

template <class Source, int nv, int m = kMaxRows>
KVILT_INLINE void run_rows(int rows, const Source (&w)[nv], const TileAt& at) {
  if constexpr (m > 0) {
    if (rows == m) return run_tile<Source, m, nv>(w, at);
    run_rows<Source, nv, m - 1>(rows, w, at);
  }
}

template <class Source, int nv>
KVILT_INLINE void run_blocks(const MatmulPart& part, const Source (&w)[nv], int64_t n) {
  const int64_t base = part.rows / part.blocks, more = part.rows % part.blocks;
  for (int64_t b = part.block_begin; b < part.block_end; ++b) {
    const int64_t row = b * base + (b < more ? b : more);
    run_rows<Source, nv>(static_cast<int>(base + (b < more)), w,
                         {&part, reinterpret_cast<const float*>(part.x) + row * part.K, row, n});
  }
}

template <DType type>
void widen(const Packed<type> (&from)[kPanelVectors], int64_t K, float* to) {
  for (int64_t pair = 0; pair < (K + 1) / 2; ++pair) {
    for (int v = 0; v < kPanelVectors; ++v) {
      store(to + (2 * pair * kPanelVectors + v) * kLanes, Packed<type>::template at<0>(from[v], pair));
      if (2 * pair + 1 == K) continue;
      store(to + ((2 * pair + 1) * kPanelVectors + v) * kLanes, Packed<type>::template at<1>(from[v], pair));
    }
  }
}

template <DType type>
void matmul(const MatmulPart& part) {
  constexpr int kColumns = kPanelVectors * kLanes;
  auto packed_at = [&part](int64_t n) {
    return Packed<type>{part.w + n / 16 * part.block_bytes, static_cast<int>(n % 16)};
  };
  const int64_t n_end = (part.n_end + 15) / 16 * 16;
  int64_t n = part.n_begin;
  if (part.rows > kDirectRows || type == DType::kF32) {
    for (; n + kColumns <= n_end; n += kColumns) {
      Packed<type> from[kPanelVectors];
      Panel panel[kPanelVectors];
      for (int v = 0; v < kPanelVectors; ++v) {
        from[v] = packed_at(n + v * kLanes);
        panel[v] = {reinterpret_cast<const float*>(part.panel), v};
      }
      if (type == DType::kF32) {
        run_blocks<Packed<type>, kPanelVectors>(part, from, n);
      } else {
        widen<type>(from, part.K, reinterpret_cast<float*>(part.panel));
        run_blocks<Panel, kPanelVectors>(part, panel, n);
      }
    }
  }
  for (; n < n_end; n += kLanes) {
    const Packed<type> w[1] = {packed_at(n)};
    run_blocks<Packed<type>, 1>(part, w, n);
  }
}

}  // namespace

namespace floats {
void matmul_F32(const MatmulPart& part) { matmul<DType::kF32>(part); }
void matmul_F16(const MatmulPart& part) { matmul<DType::kF16>(part); }
void matmul_BF16(const MatmulPart& part) { matmul<DType::kBF16>(part); }
}  // namespace floats

}  // namespace kvilt::KVILT_ISA
