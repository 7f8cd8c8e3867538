// kernels/x86/attend_bf16_tile.cc: the arithmetic of attend_bf16.h, compiled once, with AVX512_BF16.
// Idea:       an instruction multiplies 32 pairs into 16 sums, twice what an fp32 FMA does, on machines that run it at
//             full rate (Zen 4 does; Emerald Rapids has half the FMA rate, so measurement does not choose it there).
// Invariants: a line's sums run over pairs in order from a start that is its own, so its bits do not depend on other
//             lines.
// Cost:       per block of 64 keys at E = 64: 512 shuffles for K, 128 for V, 64 dots a line, and 45 operations of
//             softmax a line.
#include "kernels/x86/attend_bf16.h"

#include "kernels/x86/attend_simd.h"
#include "kernels/x86/product_tile.h"

namespace kvilt::KVILT_ISA {
namespace {

using x86::Element;
using x86::kLanes;
using x86::TileShape;
using x86::TileState;
using x86::ValueTile;
using x86::WantedColumns;

constexpr int kPairs = kBlock / 2;

// 32 bf16: `low`'s 16 first.
KVILT_INLINE __m512i to_bf16(Vec low, Vec high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

// 32 stored elements from element e on, as bf16 (bytes: without their scale).
template <Element kType>
KVILT_INLINE __m512i load_pairs(const void* row, int e) {
  if constexpr (kType == Element::kBF16) return _mm512_loadu_si512(static_cast<const uint16_t*>(row) + e);
  const int8_t* bytes = static_cast<const int8_t*>(row) + e;
  return to_bf16(load_i8(bytes), load_i8(bytes + kVec));
}

KVILT_INLINE float scale_of(const TileShape& shape, const void* row) {
  float scale;
  __builtin_memcpy(&scale, static_cast<const char*>(row) + shape.E, sizeof scale);
  return scale;
}

KVILT_INLINE void gather_scales(const TileShape& shape, const void* const* rows, float* scales) {
  for (int j = 0; j < kBlock; ++j) scales[j] = shape.kv == Element::kI8 ? scale_of(shape, rows[j]) : 1.0f;
}

template <Element kType>
void gather_keys_of(const TileShape& shape, const void* const* keys, uint64_t wanted, float* kt) {
  for (int j = 0; j < kBlock; j += kVec) {
    if ((wanted >> j & kVecColumns) == 0) continue;
    for (int e = 0; e < shape.E; e += 2 * kVec) {
      Vec r[kVec];
      KVILT_UNROLL
      for (int i = 0; i < kVec; ++i) r[i] = _mm512_castsi512_ps(load_pairs<kType>(keys[j + i], e));
      transpose(r);
      float* to = kt + e / 2 * kBlock + j;
      KVILT_UNROLL
      for (int i = 0; i < kVec; ++i) store(to + i * kBlock, r[i]);
    }
  }
  gather_scales(shape, keys, kt + shape.E / 2 * kBlock);
}

template <Element kType>
void gather_values_of(const TileShape& shape, const void* const* values, int first, int last, float* v) {
  alignas(64) uint16_t low[32], high[32];
  for (int i = 0; i < 16; ++i) {
    low[2 * i] = static_cast<uint16_t>(i);
    low[2 * i + 1] = static_cast<uint16_t>(32 + i);
    high[2 * i] = static_cast<uint16_t>(16 + i);
    high[2 * i + 1] = static_cast<uint16_t>(48 + i);
  }
  const __m512i low_pairs = _mm512_load_si512(low), high_pairs = _mm512_load_si512(high);
  first = first / 2 * 2;
  float* to = v + int64_t{first / 2} * shape.width;
  for (int j = first; j < last; j += 2, to += shape.width) {
    for (int e = 0; e < shape.E; e += 32) {
      const __m512i a = load_pairs<kType>(values[j], e), b = load_pairs<kType>(values[j + 1], e);
      _mm512_storeu_si512(to + e, _mm512_permutex2var_epi16(a, low_pairs, b));
      _mm512_storeu_si512(to + e + kVec, _mm512_permutex2var_epi16(a, high_pairs, b));
    }
  }
  gather_scales(shape, values, v + kPairs * shape.width);
}

void gather_keys(const TileShape& shape, const void* const* keys, uint64_t wanted, float* kt) {
  if (shape.kv == Element::kI8) return gather_keys_of<Element::kI8>(shape, keys, wanted, kt);
  gather_keys_of<Element::kBF16>(shape, keys, wanted, kt);
}

void gather_values(const TileShape& shape, const void* const* values, int first, int last, float* v) {
  if (shape.kv == Element::kI8) return gather_values_of<Element::kI8>(shape, values, first, last, v);
  gather_values_of<Element::kBF16>(shape, values, first, last, v);
}

void load_queries(const TileShape& shape, const float* q, int64_t stride, int rows, const float* rotation, float* out) {
  const int lines = rows * shape.group;
  TileShape one = shape;  // head by head: fp32's function knows the scale and the rotation
  one.group = 1;
  alignas(64) float head[x86::kMaxHead], stored[x86::kMaxHead];
  auto* to = reinterpret_cast<uint16_t*>(out);
  for (int r = 0; r < rows; ++r) {
    for (int h = 0; h < shape.group; ++h, to += shape.E) {
      avx512::kAttendTiles.load_queries(one, q + r * stride + h * shape.E, stride, 1, rotation, head);
      const float* from = head;
      if (shape.interleaved) {  // pairs came out as halves
        const int half = shape.rotary / 2;
        for (int i = 0; i < half; ++i) {
          stored[2 * i] = head[i];
          stored[2 * i + 1] = head[half + i];
        }
        for (int e = shape.rotary; e < shape.E; ++e) stored[e] = head[e];
        from = stored;
      }
      for (int e = 0; e < shape.E; e += 32) _mm512_storeu_si512(to + e, to_bf16(load(from + e), load(from + e + kVec)));
    }
  }
  if (lines > x86::kDirectLines) return;
  const auto* words = reinterpret_cast<const int32_t*>(out);
  auto* columns = reinterpret_cast<int32_t*>(out) + 4 * shape.E;
  for (int k = 0; k < shape.E / 2; ++k) {
    for (int l = 0; l < x86::kDirectLines; ++l) *columns++ = l < lines ? words[l * (shape.E / 2) + k] : 0;
  }
}

// ---- Products -------------------------------------------------------------------------------------------------------

struct Bf16Pairs {
  using Left = int32_t;  // a pair
  using Right = __m512bh;
  static constexpr bool kSpreadAhead = false, kScalesColumns = true;
  KVILT_INLINE __m512bh broadcast(int32_t pair) { return (__m512bh)_mm512_set1_epi32(pair); }
  KVILT_INLINE __m512bh load_right(const float* p) { return (__m512bh)load(p); }
  KVILT_INLINE Vec multiply_add(__m512bh a, __m512bh b, Vec sum) { return _mm512_dpbf16_ps(sum, a, b); }
};

void scores(const TileShape& shape, const float* q, int lines, const float* kt, WantedColumns wanted, float* s) {
  const int words = shape.E / 2;
  masked_product<Bf16Pairs>({.a = reinterpret_cast<const int32_t*>(q),
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

// ---- Few lines: keys are read in place ------------------------------------------------------------------------------
//
// A decode step has one row, so one line for each query head of the group. Transposing 64 keys for 7 lines took as long
// as their products; with the lines in the lanes and a key's words broadcast from memory only the scores are
// transposed. A line's sum runs over the same pairs in the same order, so its bits are those of scores().

// 16 sums, since a dot takes 6 cycles and two start in one; 2 words of a key at once, since longer chains fill the
// scheduler (8 words: 515 ns a block; 2 words: 380 ns, of which the dots take 281).
constexpr int kDirectKeys = 16, kDirectStep = 2;

// Lane l of r[j] becomes lane j of lines[l].
KVILT_INLINE void transpose_scores(const __m256 (&r)[kDirectKeys], Vec (&lines)[x86::kDirectLines]) {
  Vec a[8], b[8];  // each: key j in the low half, key j + 8 in the high one
  KVILT_UNROLL
  for (int j = 0; j < 8; ++j) a[j] = _mm512_insertf32x8(_mm512_castps256_ps512(r[j]), r[j + 8], 1);
  KVILT_UNROLL
  for (int j = 0; j < 8; j += 2) {
    b[j] = _mm512_unpacklo_ps(a[j], a[j + 1]);
    b[j + 1] = _mm512_unpackhi_ps(a[j], a[j + 1]);
  }
  KVILT_UNROLL
  for (int j = 0; j < 8; j += 4) {
    a[j] = _mm512_shuffle_ps(b[j], b[j + 2], 0x44);
    a[j + 1] = _mm512_shuffle_ps(b[j], b[j + 2], 0xee);
    a[j + 2] = _mm512_shuffle_ps(b[j + 1], b[j + 3], 0x44);
    a[j + 3] = _mm512_shuffle_ps(b[j + 1], b[j + 3], 0xee);
  }
  // a[i] holds keys 0..3 (8..11) of line i and, in the odd 128 bits, of line i + 4; a[i + 4] keys 4..7 (12..15).
  const __m512i even = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), odd = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
  KVILT_UNROLL
  for (int i = 0; i < 4; ++i) {
    const __m512d low = _mm512_castps_pd(a[i]), high = _mm512_castps_pd(a[i + 4]);
    lines[i] = _mm512_castpd_ps(_mm512_permutex2var_pd(low, even, high));
    lines[i + 4] = _mm512_castpd_ps(_mm512_permutex2var_pd(low, odd, high));
  }
}

void scores_direct(const TileShape& shape, const float* q, int lines, const void* const* keys, WantedColumns wanted,
                   float* s) {
  const auto [mask, ahead] = wanted;
  constexpr uint64_t kVecMask = (uint64_t{1} << kDirectKeys) - 1;
  const auto* columns = reinterpret_cast<const __m256i*>(q + 4 * shape.E);
  const int words = shape.E / 2;
  for (int j = 0; j < kBlock; j += kDirectKeys) {
    if (ahead != nullptr) {
      for (int i = j; i < j + kDirectKeys; ++i) {
        const char* row = static_cast<const char*>(ahead[i]);
        for (int at = 0; at < shape.row_bytes; at += 64) _mm_prefetch(row + at, _MM_HINT_T1);
      }
    }
    if ((mask >> j & kVecMask) == 0) continue;
    __m256 sum[kDirectKeys];
    KVILT_UNROLL
    for (int i = 0; i < kDirectKeys; ++i) sum[i] = _mm256_setzero_ps();
    for (int k = 0; k < words; k += kDirectStep) {
      __m256bh query[kDirectStep];
      KVILT_UNROLL
      for (int n = 0; n < kDirectStep; ++n) query[n] = (__m256bh)_mm256_loadu_si256(columns + k + n);
      KVILT_UNROLL
      for (int i = 0; i < kDirectKeys; ++i) {
        const int32_t* key = static_cast<const int32_t*>(keys[j + i]) + k;
        KVILT_UNROLL
        for (int n = 0; n < kDirectStep; ++n) {
          sum[i] = _mm256_dpbf16_ps(sum[i], query[n], (__m256bh)_mm256_set1_epi32(key[n]));
        }
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

// p becomes pairs of bf16 in place: each line's words are in its first half.
void add_values(const TileShape& shape, int lines, const float* p, const ValueTile& v, const float* scale_back,
                float* acc) {
  const int first = v.first / 2, last = (v.last + 1) / 2;  // pairs
  const float* tile = v.data - int64_t{v.first} * v.stride;
  auto* words = const_cast<float*>(p);
  const bool scaled = shape.kv == Element::kI8;
  Vec scale[kBlockVecs];
  for (int n = 0; n < kBlockVecs; ++n) scale[n] = load(tile + kPairs * shape.width + n * kVec);
  for (int line = 0; line < lines; ++line) {
    float* s = words + line * kBlock;
    Vec x[kBlockVecs];
    for (int n = 0; n < kBlockVecs; ++n) x[n] = scaled ? mul(load(s + n * kVec), scale[n]) : load(s + n * kVec);
    _mm512_storeu_si512(s, to_bf16(x[0], x[1]));
    _mm512_storeu_si512(s + kVec, to_bf16(x[2], x[3]));
  }
  product<Bf16Pairs>({.a = reinterpret_cast<const int32_t*>(words) + first,
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

// ---- Softmax --------------------------------------------------------------------------------------------------------

// 2^x to 7e-6 for x <= 0; 0 below -126. NaN stays NaN. A third fewer instructions than fp32's: the weights are rounded
// to 2^-9 anyway.
KVILT_INLINE Vec fast_exp2(Vec x) {
  const Vec magic = set1(12582912.0f);  // 1.5 * 2^23
  const Vec shifted = add(x, magic);    // its low bits are round(x)
  const Vec f = sub(x, sub(shifted, magic));
  Vec p = fma(set1(0.00965671028854517f), f, set1(0.055838282946219404f));
  p = fma(p, f, set1(0.24022530097412229f));
  p = fma(p, f, set1(0.6931367338836215f));
  p = fma(p, f, set1(1.0f));
  const __mmask16 seen = _mm512_cmp_ps_mask(x, set1(-126.0f), _CMP_NLT_UQ);
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
  return _mm512_castsi512_ps(_mm512_maskz_add_epi32(seen, _mm512_castps_si512(p), exponent));
}

void softmax(const TileShape& shape, int rows, const uint64_t* visible, float* s, const TileState& state,
             float* scale_back) {
  int line = 0;
  for (int r = 0; r < rows; ++r) {
    const uint64_t seen = visible[r];
    for (int h = 0; h < shape.group; ++h, ++line, s += kBlock) {
      Vec x[kBlockVecs];
      for (int n = 0; n < kBlockVecs; ++n) x[n] = load(s + n * kVec);
      if (seen != ~uint64_t{0}) {
        for (int n = 0; n < kBlockVecs; ++n) x[n] = select(lanes(seen, n), x[n], set1(-__builtin_inff()));
      }
      const float block_max = hmax(max(max(x[0], x[1]), max(x[2], x[3])));
      const float old_max = state.max[line];
      float* lane = state.lane + line * kLanes;
      Vec sum = load(lane);
      scale_back[line] = 1;
      if (block_max > old_max) {
        const Vec back = fast_exp2(set1(old_max - block_max));
        scale_back[line] = back[0];
        sum = mul(sum, back);
        state.max[line] = block_max;
      }
      const Vec base = set1(state.max[line]);
      for (int n = 0; n < kBlockVecs; ++n) {
        x[n] = (seen >> (n * kVec) & kVecColumns) == 0 ? zero() : fast_exp2(sub(x[n], base));
        store(s + n * kVec, x[n]);
      }
      store(lane, add(sum, add(add(x[0], x[1]), add(x[2], x[3]))));
    }
  }
}

// As the loops of peak.cc.
double dots(int64_t rounds, int* sink) {
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

}  // namespace

extern const x86::Bf16Tiles kBf16Tiles = {load_queries,  gather_keys, gather_values, scores,
                                          scores_direct, softmax,     add_values,    dots};

}  // namespace kvilt::KVILT_ISA
