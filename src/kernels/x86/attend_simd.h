// kernels/x86/attend_simd.h: the few vector operations of the attention tiles, once for AVX2 and once for AVX-512.
// Role:     included by per-ISA files only. Everything is static and forced inline: nothing is shared with other files.
// Not here: matmul's integer operations.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define KVILT_INLINE static inline __attribute__((always_inline))

namespace kvilt::KVILT_ISA {

#ifdef __AVX512F__

using Vec = __m512;
inline constexpr int kVec = 16;         // floats of a Vec
inline constexpr int kProductRows = 6;  // the product tile: 6 lines x 4 vectors of sums = 24 of 32 registers
inline constexpr int kFewRows = 7;  // so many lines are one tile: a group of 7 heads (its sums spill: 5 % in prefill)
inline constexpr int kTileVecs = 4;
using LaneMask = __mmask16;

KVILT_INLINE Vec zero() { return _mm512_setzero_ps(); }
KVILT_INLINE Vec set1(float x) { return _mm512_set1_ps(x); }
KVILT_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
KVILT_INLINE void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
KVILT_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
KVILT_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
KVILT_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }  // b where one is NaN
KVILT_INLINE LaneMask lanes(uint64_t mask, int vec) { return static_cast<LaneMask>(mask >> (16 * vec)); }
KVILT_INLINE Vec select(LaneMask m, Vec yes, Vec no) { return _mm512_mask_blend_ps(m, no, yes); }
KVILT_INLINE void store_lanes(float* p, LaneMask m, Vec x) { _mm512_mask_storeu_ps(p, m, x); }
KVILT_INLINE float hmax(Vec x) { return _mm512_reduce_max_ps(x); }
KVILT_INLINE float hsum(Vec x) { return _mm512_reduce_add_ps(x); }
KVILT_INLINE Vec load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
KVILT_INLINE Vec load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
KVILT_INLINE Vec load_i8(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

// 2^x to 1e-7 for x below 128; 0 below -126. NaN stays NaN. exp2(0) = 1 exactly.
KVILT_INLINE Vec exp2(Vec x) {
  const Vec n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Vec f = _mm512_sub_ps(x, n);
  Vec p = set1(0.0001535335905f);  // minimax of 2^f on [-1/2, 1/2], relative error 2e-9
  p = fma(p, f, set1(0.001339887502f));
  p = fma(p, f, set1(0.009618436918f));
  p = fma(p, f, set1(0.05550332367f));
  p = fma(p, f, set1(0.2402264774f));
  p = fma(p, f, set1(0.6931471825f));
  p = fma(p, f, set1(1.0f));
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, set1(-126.0f), _CMP_NLT_UQ), p, n);
}

#else

using Vec = __m256;
inline constexpr int kVec = 8;
inline constexpr int kProductRows = 6;  // 6 lines x 2 vectors = 12 of 16 registers
inline constexpr int kTileVecs = 2;
inline constexpr int kFewRows = 6;
using LaneMask = __m256;  // all ones or zeros per lane

KVILT_INLINE Vec zero() { return _mm256_setzero_ps(); }
KVILT_INLINE Vec set1(float x) { return _mm256_set1_ps(x); }
KVILT_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
KVILT_INLINE void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
KVILT_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
KVILT_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
KVILT_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
KVILT_INLINE LaneMask lanes(uint64_t mask, int vec) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i all = _mm256_set1_epi32(static_cast<int>(mask >> (8 * vec) & 255));
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, bit), bit));
}
KVILT_INLINE Vec select(LaneMask m, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, m); }
KVILT_INLINE void store_lanes(float* p, LaneMask m, Vec x) { store(p, select(m, x, load(p))); }
KVILT_INLINE float hmax(Vec x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
}
KVILT_INLINE float hsum(Vec x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
}
KVILT_INLINE Vec load_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
KVILT_INLINE Vec load_bf16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
KVILT_INLINE Vec load_i8(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

// As the AVX-512 one; the exponent is built by an integer shift.
KVILT_INLINE Vec exp2(Vec x) {
  const Vec n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Vec f = _mm256_sub_ps(x, n);
  Vec p = set1(0.0001535335905f);
  p = fma(p, f, set1(0.001339887502f));
  p = fma(p, f, set1(0.009618436918f));
  p = fma(p, f, set1(0.05550332367f));
  p = fma(p, f, set1(0.2402264774f));
  p = fma(p, f, set1(0.6931471825f));
  p = fma(p, f, set1(1.0f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_andnot_ps(_mm256_cmp_ps(x, set1(-126.0f), _CMP_LT_OQ), _mm256_mul_ps(p, _mm256_castsi256_ps(exponent)));
}

#endif

KVILT_INLINE Vec add(Vec a, Vec b) { return a + b; }
KVILT_INLINE Vec mul(Vec a, Vec b) { return a * b; }
KVILT_INLINE Vec sub(Vec a, Vec b) { return a - b; }

#define KVILT_UNROLL _Pragma("GCC unroll 16")  // without it the vectors of a transpose pass through memory

#ifdef __AVX512F__
KVILT_INLINE void transpose(Vec* r) {  // 16 x 16
  Vec t[16];
  KVILT_UNROLL
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  KVILT_UNROLL
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  KVILT_UNROLL
  for (int i = 0; i < 4; ++i) {  // 128-bit parts: rows i, i+4, i+8, i+12 hold columns i, i+4, i+8, i+12
    const Vec a = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88), b = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    const Vec c = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88), d = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    t[i] = _mm512_shuffle_f32x4(a, c, 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
    t[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
    t[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
  KVILT_UNROLL
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}
#else
KVILT_INLINE void transpose(Vec* r) {  // 8 x 8
  Vec t[8];
  KVILT_UNROLL
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  KVILT_UNROLL
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  KVILT_UNROLL
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
    t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
  }
  KVILT_UNROLL
  for (int i = 0; i < 8; ++i) r[i] = t[i];
}
#endif

}  // namespace kvilt::KVILT_ISA
