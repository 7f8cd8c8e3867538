// kernels/x86/attend_bf16_tile.cc: the arithmetic of attend_bf16.h, compiled once, with AVX512_BF16.
// Idea:       an instruction multiplies 32 pairs into 16 sums, twice what an fp32 FMA does, on machines that run it at
//             full rate (Zen 4 does; Emerald Rapids has half the FMA rate, so measurement does not choose it there).
// Invariants: a line's sums run over pairs in order from a start that is its own, so its bits do not depend on other
//             lines. A score is two sums, of the even pairs of elements and of the odd ones, since decode has them in
//             two lanes.
// Cost:       per block of 64 keys at E = 64: 512 shuffles for K, 128 for V, 64 dots a line, and 45 operations of
//             softmax a line.
#include "kernels/x86/attend_bf16.h"

#include "kernels/x86/attend_bf16_simd.h"

namespace kvilt::KVILT_ISA {
namespace {

using x86::DirectKeys;
using x86::DirectValues;
using x86::ValueTile;
using x86::WantedColumns;

template <Element kType>
void gather_keys_of(const TileShape& shape, const void* const* keys, uint64_t wanted, float* kt) {
  for (int j = 0; j < kBlock; j += kVec) {
    if ((wanted >> j & kVecColumns) == 0) continue;
    for (int e = 0; e < shape.E; e += 2 * kVec) {
      Vec r[kVec];
      KVILT_UNROLL
      for (int i = 0; i < kVec; ++i) r[i] = _mm512_castsi512_ps(load_pairs<kType>(keys[j + i], e));
      transpose(r);
      float* to = kt + e / 4 * kBlock + j;
      float* odd = to + shape.E / 4 * kBlock;
      KVILT_UNROLL
      for (int i = 0; i < kVec; i += 2) {
        store(to + i / 2 * kBlock, r[i]);
        store(odd + i / 2 * kBlock, r[i + 1]);
      }
    }
  }
  gather_scales(shape, keys, kt + shape.E / 2 * kBlock);
}

void gather_keys(const TileShape& shape, const void* const* keys, uint64_t wanted, float* kt) {
  if (shape.kv == Element::kI8) return gather_keys_of<Element::kI8>(shape, keys, wanted, kt);
  gather_keys_of<Element::kBF16>(shape, keys, wanted, kt);
}

void load_queries(const TileShape& shape, const float* q, int64_t stride, int rows, const float* rotation, float* out) {
  const int lines = rows * shape.group;
  auto* words = reinterpret_cast<int32_t*>(out);
  for (int line = 0; line < lines; ++line, words += shape.E / 2) {
    alignas(64) int32_t pairs[x86::kMaxHead / 2];
    round_query(shape, q + line / shape.group * stride + line % shape.group * shape.E, rotation, pairs);
    for (int k = 0; k < shape.E / 4; ++k) {
      words[k] = pairs[2 * k];
      words[k + shape.E / 4] = pairs[2 * k + 1];
    }
  }
  if (lines > x86::kDirectLines) return;
  words = reinterpret_cast<int32_t*>(out);
  int32_t* columns = words + 4 * shape.E;
  for (int k = 0; k < shape.E / 4; ++k) {
    for (int l = 0; l < x86::kDirectLines; ++l) {
      const int32_t* line = words + l * (shape.E / 2) + k;
      *columns++ = l < lines ? line[0] : 0;
      *columns++ = l < lines ? line[shape.E / 4] : 0;
    }
  }
}

// ---- Products -------------------------------------------------------------------------------------------------------

struct Bf16Pairs {
  using Left = int32_t;  // a pair
  using Right = __m512bh;
  static constexpr bool kSpreadAhead = false, kScalesColumns = true;
  static constexpr int kChains = 1;
  KVILT_INLINE __m512bh broadcast(int32_t pair) { return (__m512bh)_mm512_set1_epi32(pair); }
  KVILT_INLINE __m512bh load_right(const float* p) { return (__m512bh)load(p); }
  KVILT_INLINE Vec multiply_add(__m512bh a, __m512bh b, Vec sum) { return _mm512_dpbf16_ps(sum, a, b); }
};

struct EvenAndOddPairs : Bf16Pairs {
  static constexpr int kChains = 2;
};

void scores(const TileShape& shape, const float* q, int lines, const float* kt, WantedColumns wanted, float* s) {
  const int words = shape.E / 2;
  masked_product<EvenAndOddPairs>({.a = reinterpret_cast<const int32_t*>(q),
                                   .a_stride = words,
                                   .b = kt,
                                   .b_stride = kBlock,
                                   .k = words,
                                   .c = s,
                                   .c_stride = kBlock,
                                   .mask = wanted.mask,
                                   .ahead = wanted.ahead,
                                   .ahead_last = shape.row_bytes,
                                   .column_scale = shape.kv == Element::kI8 ? kt + words * kBlock : nullptr},
                                  lines);
}

// ---- Few lines: keys and values are read in place -------------------------------------------------------------------
//
// A decode step has one row, so one line for each query head of the group. Transposing 64 keys for 7 lines took as long
// as their products; with the lines in the lanes and a key's pairs broadcast from memory only the scores are transposed.
// Two pairs at once, an even and an odd one, so that a register holds both sums of each line: half as many products and
// loads as one pair at once, on machines that start two products of 512 bits in a cycle (Zen 5). Values become pairs in
// registers. Sums run over the same pairs in the same order as those of scores() and add_values(), so bits are the same.

// 16 sums, since a dot takes 6 cycles and two start in one.
constexpr int kDirectKeys = 16;

// Words 2l and 2l + 1 of r[j], added, become lane j of lines[l].
KVILT_INLINE void transpose_scores(const Vec (&r)[kDirectKeys], Vec (&lines)[x86::kDirectLines]) {
  Vec a[kDirectKeys / 2];  // 128 bits i: lines 2i and 2i + 1 of key 2j, then of key 2j + 1
  KVILT_UNROLL
  for (int j = 0; j < kDirectKeys / 2; ++j)
    a[j] = add(_mm512_shuffle_ps(r[2 * j], r[2 * j + 1], 0x88), _mm512_shuffle_ps(r[2 * j], r[2 * j + 1], 0xdd));
  KVILT_UNROLL
  for (int odd = 0; odd < 2; ++odd) {
    Vec b[4];  // 128 bits i: line 2i + odd of keys 4j to 4j + 3
    KVILT_UNROLL
    for (int j = 0; j < 4; ++j)
      b[j] = odd ? _mm512_shuffle_ps(a[2 * j], a[2 * j + 1], 0xdd) : _mm512_shuffle_ps(a[2 * j], a[2 * j + 1], 0x88);
    const Vec low01 = _mm512_shuffle_f32x4(b[0], b[1], 0x44), high01 = _mm512_shuffle_f32x4(b[0], b[1], 0xee);
    const Vec low23 = _mm512_shuffle_f32x4(b[2], b[3], 0x44), high23 = _mm512_shuffle_f32x4(b[2], b[3], 0xee);
    lines[odd] = _mm512_shuffle_f32x4(low01, low23, 0x88);
    lines[2 + odd] = _mm512_shuffle_f32x4(low01, low23, 0xdd);
    lines[4 + odd] = _mm512_shuffle_f32x4(high01, high23, 0x88);
    lines[6 + odd] = _mm512_shuffle_f32x4(high01, high23, 0xdd);
  }
}

void scores_direct(const TileShape& shape, const float* q, int lines, const DirectKeys& keys, float* s) {
  const uint64_t mask = keys.wanted;
  const void* const* const ahead = keys.ahead.k;
  constexpr uint64_t kVecMask = (uint64_t{1} << kDirectKeys) - 1;
  const auto* columns = reinterpret_cast<const __m512i*>(q + 4 * shape.E);
  const int steps = shape.E / 4;
  for (int j = 0; j < kBlock; j += kDirectKeys) {
    if (ahead != nullptr) {
      for (int i = j; i < j + kDirectKeys; ++i) {
        const char* row = static_cast<const char*>(ahead[i]);
        for (int at = 0; at < shape.row_bytes; at += 64) _mm_prefetch(row + at, _MM_HINT_T1);
      }
    }
    if ((mask >> j & kVecMask) == 0) continue;
    Vec sum[kDirectKeys];
    KVILT_UNROLL
    for (int i = 0; i < kDirectKeys; ++i) sum[i] = zero();
    for (int k = 0; k < steps; ++k) {
      const auto query = (__m512bh)_mm512_loadu_si512(columns + k);
      KVILT_UNROLL
      for (int i = 0; i < kDirectKeys; ++i) {
        const int64_t pairs = static_cast<const int64_t*>(keys.rows[j + i])[k];
        sum[i] = _mm512_dpbf16_ps(sum[i], query, (__m512bh)_mm512_set1_epi64(pairs));
      }
    }
    Vec by_line[x86::kDirectLines];
    transpose_scores(sum, by_line);
    KVILT_UNROLL
    for (int l = 0; l < x86::kDirectLines; ++l) {
      if (l < lines) store_lanes(s + l * kBlock + j, lanes(mask >> j, 0), by_line[l]);
    }
  }
}

template <int kLines>
KVILT_INLINE void add_direct(const TileShape& shape, const int32_t* words, const DirectValues& v,
                             const float* scale_back, float* acc) {
  const ValuePairs order = ValuePairs::order();
  for (int e = 0; e < shape.E; e += 32, acc += 32) {
    Vec sum[kLines][2];
    KVILT_UNROLL
    for (int i = 0; i < kLines; ++i) {
      sum[i][0] = mul(load(acc + i * shape.width), set1(scale_back[i]));
      sum[i][1] = mul(load(acc + i * shape.width + kVec), set1(scale_back[i]));
    }
    for (int j = v.first / 2 * 2; j < v.last; j += 2) {
      if (v.ahead.v != nullptr) {  // a line of each row at every step
        _mm_prefetch(static_cast<const char*>(v.ahead.v[j]) + 2 * e, _MM_HINT_T1);
        _mm_prefetch(static_cast<const char*>(v.ahead.v[j + 1]) + 2 * e, _MM_HINT_T1);
      }
      const auto pairs =
          ValuePairs::of(load_pairs<Element::kBF16>(v.rows[j], e), load_pairs<Element::kBF16>(v.rows[j + 1], e), order);
      KVILT_UNROLL
      for (int i = 0; i < kLines; ++i) {
        const auto p = (__m512bh)_mm512_set1_epi32(words[i * kBlock + j / 2]);
        sum[i][0] = _mm512_dpbf16_ps(sum[i][0], p, (__m512bh)pairs.low);
        sum[i][1] = _mm512_dpbf16_ps(sum[i][1], p, (__m512bh)pairs.high);
      }
    }
    KVILT_UNROLL
    for (int i = 0; i < kLines; ++i) {
      store(acc + i * shape.width, sum[i][0]);
      store(acc + i * shape.width + kVec, sum[i][1]);
    }
  }
}

void add_values_direct(const TileShape& shape, int lines, const float* p, const DirectValues& v,
                       const float* scale_back, float* acc) {
  const auto* words = reinterpret_cast<const int32_t*>(p);
  switch (lines) {
    case 1:
      return add_direct<1>(shape, words, v, scale_back, acc);
    case 2:
      return add_direct<2>(shape, words, v, scale_back, acc);
    case 3:
      return add_direct<3>(shape, words, v, scale_back, acc);
    case 4:
      return add_direct<4>(shape, words, v, scale_back, acc);
    case 5:
      return add_direct<5>(shape, words, v, scale_back, acc);
    case 6:
      return add_direct<6>(shape, words, v, scale_back, acc);
    case 7:
      return add_direct<7>(shape, words, v, scale_back, acc);
    default:
      return add_direct<8>(shape, words, v, scale_back, acc);
  }
}

void add_values(const TileShape& shape, int lines, const float* p, const ValueTile& v, const float* scale_back,
                float* acc) {
  const int first = v.first / 2, last = (v.last + 1) / 2;  // pairs
  const float* tile = v.data - int64_t{v.first} * v.stride;
  if (shape.kv == Element::kI8) scale_weights(lines, p, tile + kPairs * shape.width);
  product<Bf16Pairs>({.a = reinterpret_cast<const int32_t*>(p) + first,
                      .a_stride = kBlock,
                      .b = tile + int64_t{first} * shape.width,
                      .b_stride = shape.width,
                      .k = last - first,
                      .c = acc,
                      .c_stride = shape.width,
                      .scale_back = scale_back,
                      .ahead = v.ahead,
                      .ahead_last = shape.row_bytes},
                     lines, shape.width / kVec);
}

}  // namespace

namespace peak {

double bf16_dots(int64_t rounds, int* sink) {
  constexpr int kChains = 12;
  Vec sum[kChains];
  for (int i = 0; i < kChains; ++i) sum[i] = set1(static_cast<float>(i));
  Vec a = set1(0.5f), b = set1(static_cast<float>(*sink & 1));
  for (int64_t n = 0; n < rounds; ++n) {
    KVILT_UNROLL
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)a, (__m512bh)b);
    asm volatile("" : "+x"(a), "+x"(b));
  }
  for (int i = 0; i < kChains; ++i) *sink += static_cast<int>(hsum(sum[i]));
  return static_cast<double>(rounds) * kChains * kVec * 4;
}

}  // namespace peak

extern const x86::Bf16Tiles kBf16Tiles = {load_queries,  gather_keys,       gather_values, scores,
                                          scores_direct, add_values_direct, softmax,       add_values};

}  // namespace kvilt::KVILT_ISA
