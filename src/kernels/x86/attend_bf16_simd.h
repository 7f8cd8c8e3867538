// kernels/x86/attend_bf16_simd.h: what attention in bf16 has in common whether vectors multiply (attend_bf16_tile.cc) or
// tiles do (attend_amx_tile.cc): rounding queries, laying out values, softmax.
// Role:       for per-ISA files only, as attend_simd.h.
// Invariants: every function computes a line by itself.
#pragma once

#include "kernels/x86/attend_bf16.h"
#include "kernels/x86/attend_simd.h"
#include "kernels/x86/product_tile.h"

namespace kvilt::KVILT_ISA {
namespace {

using x86::Element;
using x86::kLanes;
using x86::TileShape;
using x86::TileState;

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

// One head's query, scaled, rotated and rounded, as pairs in the order of stored elements.
KVILT_INLINE void round_query(const TileShape& shape, const float* query, const float* rotation, int32_t* pairs) {
  TileShape one = shape;  // fp32's function knows the scale and the rotation
  one.group = 1;
  alignas(64) float head[x86::kMaxHead], stored[x86::kMaxHead];
  avx512::kAttendTiles.load_queries(one, query, shape.E, 1, rotation, head);
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
  for (int e = 0; e < shape.E; e += 32)
    _mm512_storeu_si512(pairs + e / 2, to_bf16(load(from + e), load(from + e + kVec)));
}

// ---- Values ---------------------------------------------------------------------------------------------------------

// Elements of two values, 32 each, as words that hold one of each: the first 16, the last 16.
struct ValuePairs {
  __m512i low, high;

  KVILT_INLINE ValuePairs order() {
    alignas(64) uint16_t low[32], high[32];
    for (int i = 0; i < 16; ++i) {
      low[2 * i] = static_cast<uint16_t>(i);
      low[2 * i + 1] = static_cast<uint16_t>(32 + i);
      high[2 * i] = static_cast<uint16_t>(16 + i);
      high[2 * i + 1] = static_cast<uint16_t>(48 + i);
    }
    return {_mm512_load_si512(low), _mm512_load_si512(high)};
  }
  KVILT_INLINE ValuePairs of(__m512i a, __m512i b, const ValuePairs& order) {
    return {_mm512_permutex2var_epi16(a, order.low, b), _mm512_permutex2var_epi16(a, order.high, b)};
  }
};

template <Element kType>
void gather_values_of(const TileShape& shape, const void* const* values, int first, int last, float* v) {
  const ValuePairs order = ValuePairs::order();
  first = first / 2 * 2;
  float* to = v + int64_t{first / 2} * shape.width;
  for (int j = first; j < last; j += 2, to += shape.width) {
    for (int e = 0; e < shape.E; e += 32) {
      const auto pairs = ValuePairs::of(load_pairs<kType>(values[j], e), load_pairs<kType>(values[j + 1], e), order);
      _mm512_storeu_si512(to + e, pairs.low);
      _mm512_storeu_si512(to + e + kVec, pairs.high);
    }
  }
  gather_scales(shape, values, v + kPairs * shape.width);
}

void gather_values(const TileShape& shape, const void* const* values, int first, int last, float* v) {
  if (shape.kv == Element::kI8) return gather_values_of<Element::kI8>(shape, values, first, last, v);
  gather_values_of<Element::kBF16>(shape, values, first, last, v);
}

// ---- Weights of values ----------------------------------------------------------------------------------------------
//
// Over kBF16 softmax leaves them as pairs, a line's words in its first half; over kI8 as floats, which scale_weights
// scales first.

KVILT_INLINE void store_pairs(float* s, const Vec (&x)[kBlockVecs]) {
  _mm512_storeu_si512(s, to_bf16(x[0], x[1]));
  _mm512_storeu_si512(s + kVec, to_bf16(x[2], x[3]));
}

// p times the scales of the values, as pairs in place.
void scale_weights(int lines, const float* p, const float* scales) {
  auto* weights = const_cast<float*>(p);
  for (int line = 0; line < lines; ++line, weights += kBlock) {
    Vec x[kBlockVecs];
    KVILT_UNROLL
    for (int n = 0; n < kBlockVecs; ++n) x[n] = mul(load(weights + n * kVec), load(scales + n * kVec));
    store_pairs(weights, x);
  }
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

template <bool kPairsOut>
void softmax_lines(const TileShape& shape, int rows, const uint64_t* visible, float* s, const TileState& state,
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
        if (!kPairsOut) store(s + n * kVec, x[n]);
      }
      if (kPairsOut) store_pairs(s, x);
      store(lane, add(sum, add(add(x[0], x[1]), add(x[2], x[3]))));
    }
  }
}

void softmax(const TileShape& shape, int rows, const uint64_t* visible, float* s, const TileState& state,
             float* scale_back) {
  if (shape.kv == Element::kI8) return softmax_lines<false>(shape, rows, visible, s, state, scale_back);
  softmax_lines<true>(shape, rows, visible, s, state, scale_back);
}

}  // namespace
}  // namespace kvilt::KVILT_ISA
