// kernels/x86/matmul.cc: quantised weights x int8 activations; built once per ISA.
// Role:       Kernels::matmul for Q formats; layouts and the arithmetic's order: kernels.h.
// Idea:       weights stay unsigned (their offset is paid once per row and group, as the start value of the integer
//             sum), activations are signed and broadcast: what vpdpbusd wants. Few rows: decode in registers, so each
//             packed byte is read once. Many rows: decode a panel of columns into L2, then run all row blocks over it.
// Invariants: int dots are exact, floats follow kernels.h: direct and panel kernels give the same bits.
// Not here:   splitting into parts and scratch (backend.cc), packing (pack.cc).
#include "kernels/x86/kernels.h"
#include "kernels/x86/linear_simd.h"

namespace kvilt::KVILT_ISA {

using x86::Chunk;
using x86::Format;
using x86::kGroup;
using x86::kRecordBytes;
using x86::MatmulPart;

namespace {

// ---- Integer dots --------------------------------------------------------------------------------------------------

#ifdef KVILT_ISA_avx512

// acc += for each lane: 4 unsigned weights . 4 signed activations.
template <int bits>
KVILT_INLINE VI dot(VI acc, VI w, VI x) {
  return _mm512_dpbusd_epi32(acc, w, x);
}
template <int bits>
constexpr bool kWeightsSigned = false;

#else

// vpmaddubsw saturates at 16 bits: 2 x 63 x 127 fits; with 8-bit weights only |w| <= 128 does, and x takes w's sign.
template <int bits>
constexpr bool kWeightsSigned = bits == 8;

template <int bits>
KVILT_INLINE VI dot(VI acc, VI w, VI x) {
  const VI ones = _mm256_set1_epi16(1);
  if constexpr (kWeightsSigned<bits>) {
    const VI pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, ones));
  } else {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), ones));
  }
}

#endif

// ---- Sources of weights: packed blocks and decoded panels
// -------------------------------------------------------------

template <int n>
KVILT_INLINE VI shifted(VI v) {  // left; right if negative
  if constexpr (n >= 0) {
    return shift_left<n>(v);
  } else {
    return shift_right<-n>(v);
  }
}

// kLanes lanes of a packed block.
template <DType type>
struct Packed {
  static constexpr Format kFormat = x86::format_of(type);
  static constexpr Chunk kChunk = x86::chunk_of(type);
  const std::byte* block;
  int lane;  // first lane

  KVILT_INLINE const std::byte* chunk(const Packed& p, int64_t g) { return p.block + g / kChunk.groups * kChunk.bytes; }

  template <int j>
  KVILT_INLINE VI quad(const Packed& p, int64_t g) {
    const std::byte* group = chunk(p, g) + kChunk.quants + g % kChunk.groups * kChunk.group_bytes + p.lane * 4;
    if constexpr (kFormat.bits == 8) {
      const VI w = load_bytes(group + j * 64);
      if constexpr (kWeightsSigned<8>) return xor_i(w, set_i(static_cast<int>(0x80808080u)));
      return w;
    } else {
      VI w = load_bytes(group + j / 2 * 64);
      if constexpr (j % 2 == 1) w = shift_right<4>(w);
      w = and_i(w, set_i(0x0f0f0f0f));
      if constexpr (kFormat.bits == 5) {
        w = or_i(w, and_i(shifted<4 - j>(load_bytes(group + kChunk.highs)), set_i(0x10101010)));
      } else if constexpr (kFormat.bits == 6) {
        const VI high = load_bytes(group + kChunk.highs + j / 4 * 64);
        w = or_i(w, and_i(shifted<4 - 2 * (j % 4)>(high), set_i(0x30303030)));
      }
      return w;
    }
  }
  KVILT_INLINE VF scale(const Packed& p, int64_t g, int s) {
    const std::byte* c = chunk(p, g);
    const int64_t i = g % kChunk.groups;
    if constexpr (!kFormat.super) {
      return load_half(c + kChunk.scales + i * 32 + p.lane * 2);
    } else {
      const std::byte* sub = c + kChunk.sub + (i * kFormat.scales + s) * 16 + p.lane;
      return mul(load_half(c + kChunk.scales + p.lane * 2), kFormat.scales == 2 ? load_i8(sub) : load_u8(sub));
    }
  }
  KVILT_INLINE VF min(const Packed& p, int64_t g) {
    const std::byte* c = chunk(p, g);
    const int64_t i = g % kChunk.groups;
    if constexpr (!kFormat.super) {
      return load_half(c + kChunk.mins + i * 32 + p.lane * 2);
    } else {
      const VF m = mul(load_half(c + kChunk.mins + p.lane * 2), load_u8(c + kChunk.submins + i * 16 + p.lane));
      return sub(zero_f(), m);
    }
  }
};

constexpr int kDirectRows = 2 * kMaxRows;  // up to so many x rows, decoding in registers beats a panel

template <DType type>
struct Panel {
  static constexpr Format kFormat = x86::format_of(type);
  static constexpr int64_t kScales = kPanelVectors * 8 * kVector;
  static constexpr int64_t kMins = kScales + kPanelVectors * kFormat.scales * kVector;
  static constexpr int64_t kBytes = kMins + (kFormat.mins ? kPanelVectors * kVector : 0);
  const std::byte* data;
  int vector;

  template <int j>
  KVILT_INLINE VI quad(const Panel& p, int64_t g) {
    return load_bytes(p.data + g * kBytes + (p.vector * 8 + j) * kVector);
  }
  KVILT_INLINE VF scale(const Panel& p, int64_t g, int s) {
    return as_float(load_bytes(p.data + g * kBytes + kScales + (p.vector * kFormat.scales + s) * kVector));
  }
  KVILT_INLINE VF min(const Panel& p, int64_t g) {
    return as_float(load_bytes(p.data + g * kBytes + kMins + p.vector * kVector));
  }
};

template <DType type, int j = 0>
KVILT_INLINE void decode_quads(const Packed<type>& from, int64_t g, std::byte* to) {
  if constexpr (j < 8) {
    store_bytes(to + j * kVector, Packed<type>::template quad<j>(from, g));
    decode_quads<type, j + 1>(from, g, to);
  }
}

template <DType type>
void decode_panel(const Packed<type> (&from)[kPanelVectors], int64_t groups, std::byte* panel) {
  using P = Panel<type>;
  for (int v = 0; v < kPanelVectors; ++v) {
    std::byte* to = panel;
    for (int64_t g = 0; g < groups; ++g, to += P::kBytes) {
      decode_quads<type>(from[v], g, to + v * 8 * kVector);
      for (int s = 0; s < P::kFormat.scales; ++s) {
        store(reinterpret_cast<float*>(to + P::kScales + (v * P::kFormat.scales + s) * kVector),
              Packed<type>::scale(from[v], g, s));
      }
      if constexpr (P::kFormat.mins) {
        store(reinterpret_cast<float*>(to + P::kMins + v * kVector), Packed<type>::min(from[v], g));
      }
    }
  }
}

// ---- The tile ------------------------------------------------------------------------------------------------------

template <int bits, class Source, int m, int nv, int j, int j_end>
KVILT_INLINE void dot_quads(const Source (&w)[nv], int64_t g, const std::byte* x, VI (&acc)[m][nv]) {
  if constexpr (j < j_end) {
    VI quads[nv];
    KVILT_UNROLL
    for (int v = 0; v < nv; ++v) quads[v] = Source::template quad<j>(w[v], g);
    KVILT_UNROLL
    for (int r = 0; r < m; ++r) {
      const VI xr = set_i(load_word(x + (j * m + r) * 4));
      KVILT_UNROLL
      for (int v = 0; v < nv; ++v) acc[r][v] = dot<bits>(acc[r][v], quads[v], xr);
    }
    dot_quads<bits, Source, m, nv, j + 1, j_end>(w, g, x, acc);
  }
}

// m rows x nv vectors of columns over all of K.
template <class Source, int m, int nv>
KVILT_INLINE void tile(const Source (&w)[nv], const std::byte* x, int64_t groups, VF (&sum)[m][nv]) {
  constexpr Format f = Source::kFormat;
  constexpr bool offset = !f.mins && !kWeightsSigned<f.bits>;
  KVILT_UNROLL
  for (int r = 0; r < m; ++r) {
    KVILT_UNROLL
    for (int v = 0; v < nv; ++v) sum[r][v] = zero_f();
  }
  for (int64_t g = 0; g < groups; ++g, x += kRecordBytes * m) {
    const std::byte* scales = x + 32 * m;
    const std::byte* scaled_sums = x + 36 * m;
    VF part[m][nv];
    KVILT_UNROLL
    for (int s = 0; s < f.scales; ++s) {
      const std::byte* minus_sums = x + (f.scales == 1 ? 40 : 44 + 4 * s) * m;
      VI acc[m][nv];
      KVILT_UNROLL
      for (int r = 0; r < m; ++r) {
        const VI start = offset ? shift_left<f.bits - 1>(set_i(load_word(minus_sums + r * 4))) : zero_i();
        KVILT_UNROLL
        for (int v = 0; v < nv; ++v) acc[r][v] = start;
      }
      if (f.scales == 1) {
        dot_quads<f.bits, Source, m, nv, 0, 8>(w, g, x, acc);
      } else if (s == 0) {
        dot_quads<f.bits, Source, m, nv, 0, 4>(w, g, x, acc);
      } else {
        dot_quads<f.bits, Source, m, nv, 4, 8>(w, g, x, acc);
      }
      VF weight_scale[nv];
      KVILT_UNROLL
      for (int v = 0; v < nv; ++v) weight_scale[v] = Source::scale(w[v], g, s);
      KVILT_UNROLL
      for (int r = 0; r < m; ++r) {
        KVILT_UNROLL
        for (int v = 0; v < nv; ++v) {
          const VF exact = to_float(acc[r][v]);
          part[r][v] = s == 0 ? mul(exact, weight_scale[v]) : fma(exact, weight_scale[v], part[r][v]);
        }
      }
    }
    KVILT_UNROLL
    for (int r = 0; r < m; ++r) {
      const VF x_scale = set(load_float(scales + r * 4));
      KVILT_UNROLL
      for (int v = 0; v < nv; ++v) sum[r][v] = fma(part[r][v], x_scale, sum[r][v]);
    }
    if constexpr (f.mins) {
      VF mins[nv];
      KVILT_UNROLL
      for (int v = 0; v < nv; ++v) mins[v] = Source::min(w[v], g);
      KVILT_UNROLL
      for (int r = 0; r < m; ++r) {
        const VF scaled_sum = set(load_float(scaled_sums + r * 4));
        KVILT_UNROLL
        for (int v = 0; v < nv; ++v) sum[r][v] = fma(mins[v], scaled_sum, sum[r][v]);
      }
    }
  }
}

struct TileAt {
  const MatmulPart* part;
  const std::byte* x;  // of the row block
  int64_t row, n;      // first row and column
};

template <class Source, int m, int nv>
void run_tile(const Source (&w)[nv], const TileAt& at) {
  VF sum[m][nv];
  tile<Source, m, nv>(w, at.x, at.part->K / kGroup, sum);
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

// All row blocks of the part over the same columns.
template <class Source, int nv>
KVILT_INLINE void run_blocks(const MatmulPart& part, const Source (&w)[nv], int64_t n) {
  const int64_t base = part.rows / part.blocks, more = part.rows % part.blocks;
  const int64_t groups = part.K / kGroup;
  for (int64_t b = part.block_begin; b < part.block_end; ++b) {
    const int64_t row = b * base + (b < more ? b : more);
    run_rows<Source, nv>(static_cast<int>(base + (b < more)), w, {&part, part.x + row * groups * kRecordBytes, row, n});
  }
}

template <DType type>
void matmul(const MatmulPart& part) {
  auto packed_at = [&part](int64_t n) {
    return Packed<type>{part.w + n / 16 * part.block_bytes, static_cast<int>(n % 16)};
  };
  const int64_t n_end = (part.n_end + 15) / 16 * 16;  // blocks are whole; lanes beyond N are zero
  const bool direct = part.rows <= kDirectRows;
  int64_t n = part.n_begin;
  if (!direct) {
    for (; n + kPanelVectors * kLanes <= n_end; n += kPanelVectors * kLanes) {
      Packed<type> from[kPanelVectors];
      Panel<type> panel[kPanelVectors];
      for (int v = 0; v < kPanelVectors; ++v) {
        from[v] = packed_at(n + v * kLanes);
        panel[v] = {part.panel, v};
      }
      decode_panel<type>(from, part.K / kGroup, part.panel);
      run_blocks<Panel<type>, kPanelVectors>(part, panel, n);
    }
  }
  for (; n < n_end; n += kLanes) {
    const Packed<type> w[1] = {packed_at(n)};
    run_blocks<Packed<type>, 1>(part, w, n);
  }
}

}  // namespace

namespace quantised {
#define KVILT_MATMUL(type) \
  void matmul_##type(const MatmulPart& part) { matmul<DType::k##type>(part); }
KVILT_MATMUL(Q4_0)
KVILT_MATMUL(Q4_1)
KVILT_MATMUL(Q5_0)
KVILT_MATMUL(Q5_1)
KVILT_MATMUL(Q8_0)
KVILT_MATMUL(Q4_K)
KVILT_MATMUL(Q5_K)
KVILT_MATMUL(Q6_K)
#undef KVILT_MATMUL
}  // namespace quantised

}  // namespace kvilt::KVILT_ISA
