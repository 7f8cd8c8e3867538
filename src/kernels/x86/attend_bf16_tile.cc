// kernels/x86/attend_bf16_tile.cc: the arithmetic of attend_bf16.h, compiled once, with AVX512_BF16.
// Idea:       an instruction multiplies 32 pairs into 16 sums, twice what an fp32 FMA does, on machines that run it at full rate
//             (Zen 4 does; Emerald Rapids has half the FMA rate, and dispatch by measurement leaves it alone).
// Invariants: a line's sums run over pairs in order from a start that is its own, so its bits do not depend on other lines.
// Cost:       per block of 64 keys at E = 64: 512 shuffles for K, 128 for V, 64 dots a line, and 45 operations of softmax a line.
#include "kernels/x86/attend_bf16.h"

#include "kernels/x86/attend_simd.h"

namespace kvilt::avx512 {
extern const x86::TileKernels kAttendTiles;
}

namespace kvilt::KVILT_ISA {
namespace {

using x86::Element;
using x86::kBlock;
using x86::kLanes;
using x86::TileShape;
using x86::TileState;
using x86::ValueTile;

constexpr int kBlockVecs = kBlock / kVec, kPairs = kBlock / 2;
constexpr uint64_t kVecColumns = (uint64_t{1} << kVec) - 1;

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
      if (shape.interleaved) {  // it laid pairs out as halves
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

struct Product {  // c (lines x columns) = init + a (lines x k pairs, broadcast) . b (k pairs x columns)
  const int32_t* a;
  int64_t a_stride;
  const float* b;
  int64_t b_stride;
  int k;
  float* c;
  int64_t c_stride;
  const float* scale_back;             // init = c * scale_back[line]; null: init = 0, and the store is masked
  const float* column_scale;           // of what is stored; null: 1
  uint64_t mask;                       // columns to store, bit 0 at c
  const void* const* ahead = nullptr;  // kBlock rows to prefetch
  int ahead_bytes = 0;
};

template <int kLines, int kVecs, bool kAhead>
KVILT_INLINE void product_tile(const Product& p) {
  Vec sum[kLines][kVecs];
#pragma GCC unroll 8
  for (int i = 0; i < kLines; ++i) {
#pragma GCC unroll 4
    for (int n = 0; n < kVecs; ++n) {
      sum[i][n] = p.scale_back == nullptr ? zero() : mul(load(p.c + i * p.c_stride + n * kVec), set1(p.scale_back[i]));
    }
  }
  const int32_t* a = p.a;
  const float* b = p.b;
  int fetched = 0;
  const int each = kAhead ? (kBlock + p.k - 1) / p.k : 0;
  for (int k = 0; k < p.k; ++k, ++a, b += p.b_stride) {
    if (kAhead) {
      for (int n = 0; n < each && fetched < kBlock; ++n, ++fetched) {
        const char* row = static_cast<const char*>(p.ahead[fetched]);
        for (int at = 0; at < p.ahead_bytes; at += 64) _mm_prefetch(row + at, _MM_HINT_T1);
      }
    }
    __m512bh bk[kVecs];
#pragma GCC unroll 4
    for (int n = 0; n < kVecs; ++n) bk[n] = (__m512bh)load(b + n * kVec);
#pragma GCC unroll 8
    for (int i = 0; i < kLines; ++i) {
      const __m512bh ak = (__m512bh)_mm512_set1_epi32(a[i * p.a_stride]);
#pragma GCC unroll 4
      for (int n = 0; n < kVecs; ++n) sum[i][n] = _mm512_dpbf16_ps(sum[i][n], ak, bk[n]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kLines; ++i) {
#pragma GCC unroll 4
    for (int n = 0; n < kVecs; ++n) {
      float* c = p.c + i * p.c_stride + n * kVec;
      if (p.scale_back != nullptr) {
        store(c, sum[i][n]);
      } else if (p.column_scale == nullptr) {
        store_lanes(c, lanes(p.mask, n), sum[i][n]);
      } else {
        store_lanes(c, lanes(p.mask, n), mul(sum[i][n], load(p.column_scale + n * kVec)));
      }
    }
  }
}

template <int kVecs, bool kAhead>
void product_few(const Product& p, int lines) {
  switch (lines) {
    case 1:
      return product_tile<1, kVecs, kAhead>(p);
    case 2:
      return product_tile<2, kVecs, kAhead>(p);
    case 3:
      return product_tile<3, kVecs, kAhead>(p);
    case 4:
      return product_tile<4, kVecs, kAhead>(p);
    case 5:
      return product_tile<5, kVecs, kAhead>(p);
    case 6:
      return product_tile<6, kVecs, kAhead>(p);
    case 7:
      return product_tile<7, kVecs, kAhead>(p);
    default:
      return;
  }
}

template <int kVecs>
void product_lines(Product p, int lines) {
  while (lines > 0) {
    const int count = lines < kProductRows ? lines : kProductRows;
    if (p.ahead != nullptr) {
      product_few<kVecs, true>(p, count);
      p.ahead = nullptr;
    } else {
      product_few<kVecs, false>(p, count);
    }
    p.a += count * p.a_stride;
    p.c += count * p.c_stride;
    if (p.scale_back != nullptr) p.scale_back += count;
    lines -= count;
  }
}

// `vecs` vectors of columns for all lines.
void product(Product p, int lines, int vecs) {
  for (int done = 0; done < vecs;) {
    const int n = vecs - done < kTileVecs ? vecs - done : kTileVecs;
    if (n == 1) product_lines<1>(p, lines);
    if (n == 2) product_lines<2>(p, lines);
    if (n == 3) product_lines<3>(p, lines);
    if (n == 4) product_lines<4>(p, lines);
    done += n;
    p.ahead = nullptr;
    p.b += n * kVec;
    p.c += n * kVec;
    if (p.column_scale != nullptr) p.column_scale += n * kVec;
    p.mask = n * kVec < 64 ? p.mask >> (n * kVec) : 0;
  }
}

void scores(const TileShape& shape, const float* q, int lines, const float* kt, uint64_t mask, const void* const* ahead,
            float* s) {
  const float* scales = shape.kv == Element::kI8 ? kt + shape.E / 2 * kBlock : nullptr;
  for (int n = 0; n < kBlockVecs;) {  // runs of vectors that have a wanted column
    if ((mask >> (n * kVec) & kVecColumns) == 0) {
      ++n;
      continue;
    }
    int end = n + 1;
    while (end < kBlockVecs && (mask >> (end * kVec) & kVecColumns) != 0) ++end;
    Product p = {};
    p.a = reinterpret_cast<const int32_t*>(q);
    p.a_stride = shape.E / 2;
    p.b = kt + n * kVec;
    p.b_stride = kBlock;
    p.k = shape.E / 2;
    p.c = s + n * kVec;
    p.c_stride = kBlock;
    p.column_scale = scales == nullptr ? nullptr : scales + n * kVec;
    p.mask = mask >> (n * kVec);
    p.ahead = ahead;
    p.ahead_bytes = shape.row_bytes;
    product(p, lines, end - n);
    ahead = nullptr;
    n = end;
  }
}

// ---- Few lines: keys from where they are --------------------------------------------------------------------------------
//
// A decode step has one row, so a line for each query head of the group. Transposing 64 keys for 7 lines took as long as
// their products; with the lines in the lanes and a key's words broadcast from memory nothing is transposed but the scores.
// A line's sum runs over the same pairs in the same order, so its bits are those of scores().

// 16 sums, since a dot takes 6 cycles and two start in one; 2 words of a key at once, since longer chains fill the scheduler (8
// words: 515 ns a block, 2: 380, of 281 that the dots alone take).
constexpr int kDirectKeys = 16, kDirectStep = 2;

// r[j] lane l -> lines[l] lane j.
KVILT_INLINE void turn_scores(const __m256 (&r)[kDirectKeys], Vec (&lines)[x86::kDirectLines]) {
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

void scores_direct(const TileShape& shape, const float* q, int lines, const void* const* keys, uint64_t mask,
                   const void* const* ahead, float* s) {
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
    Vec turned[x86::kDirectLines];
    turn_scores(sum, turned);
    KVILT_UNROLL
    for (int l = 0; l < x86::kDirectLines; ++l) {
      if (l < lines) store_lanes(s + l * kBlock + j, lanes(mask >> j, 0), turned[l]);
    }
  }
}

// p becomes pairs of bf16, in its own place: each line's words in its first half.
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
  Product product_of = {};
  product_of.a = reinterpret_cast<const int32_t*>(words) + first;
  product_of.a_stride = kBlock;
  product_of.b = tile + int64_t{first} * shape.width;
  product_of.b_stride = shape.width;
  product_of.k = last - first;
  product_of.c = acc;
  product_of.c_stride = shape.width;
  product_of.scale_back = scale_back;
  product_of.ahead = v.ahead;
  product_of.ahead_bytes = shape.row_bytes;
  product(product_of, lines, shape.width / kVec);
}

// ---- Softmax --------------------------------------------------------------------------------------------------------

// 2^x to 7e-6 for x <= 0; 0 below -126. NaN stays NaN. A third fewer instructions than fp32's: the weights are rounded to
// 2^-9 anyway.
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
