// kernels/x86/linear_simd.h: vectors of the ISA that a file is built for: VF (floats) and VI, kLanes lanes.
// Role:       for matmul*.cc, peak.cc and rows.cc.
// Invariants: included by per-ISA files only; everything is always inlined and has internal linkage, so that nothing is
//             shared with other files.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(KVILT_ISA_avx512) || defined(KVILT_ISA_avx512bf16) || defined(KVILT_ISA_amx)
#define KVILT_512  // vectors of 512 bits
#endif
#if defined(KVILT_512) || defined(KVILT_ISA_avxvnni) || defined(KVILT_ISA_vnni256)
#define KVILT_VNNI  // has vpdpbusd
#endif

#define KVILT_INLINE static inline __attribute__((always_inline))
#define KVILT_UNROLL _Pragma("GCC unroll 32")

namespace kvilt::KVILT_ISA {
namespace {

#ifdef KVILT_512

using VF = __m512;
using VI = __m512i;
constexpr int kLanes = 16;

KVILT_INLINE VF zero_f() { return _mm512_setzero_ps(); }
KVILT_INLINE VI zero_i() { return _mm512_setzero_si512(); }
KVILT_INLINE VF load(const float* p) { return _mm512_loadu_ps(p); }
KVILT_INLINE void store(float* p, VF v) { _mm512_storeu_ps(p, v); }
KVILT_INLINE __mmask16 first(int count) { return static_cast<__mmask16>((1u << count) - 1); }
KVILT_INLINE VF load_some(const float* p, int count) { return _mm512_maskz_loadu_ps(first(count), p); }
KVILT_INLINE void store_some(float* p, VF v, int count) { _mm512_mask_storeu_ps(p, first(count), v); }
KVILT_INLINE VI load_bytes(const void* p) { return _mm512_loadu_si512(p); }
KVILT_INLINE void store_bytes(void* p, VI v) { _mm512_storeu_si512(p, v); }
KVILT_INLINE VF set(float x) { return _mm512_set1_ps(x); }
KVILT_INLINE VI set_i(int x) { return _mm512_set1_epi32(x); }
KVILT_INLINE VF fma(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }
KVILT_INLINE VF mul(VF a, VF b) { return _mm512_mul_ps(a, b); }
KVILT_INLINE VF add(VF a, VF b) { return _mm512_add_ps(a, b); }
KVILT_INLINE VF sub(VF a, VF b) { return _mm512_sub_ps(a, b); }
KVILT_INLINE VF div(VF a, VF b) { return _mm512_div_ps(a, b); }
KVILT_INLINE VF max_f(VF a, VF b) { return _mm512_max_ps(a, b); }
KVILT_INLINE VF min_f(VF a, VF b) { return _mm512_min_ps(a, b); }
KVILT_INLINE VF to_float(VI v) { return _mm512_cvtepi32_ps(v); }
KVILT_INLINE VI to_int(VF v) { return _mm512_cvtps_epi32(v); }  // to nearest, ties to even
KVILT_INLINE VI and_i(VI a, VI b) { return _mm512_and_si512(a, b); }
KVILT_INLINE VI or_i(VI a, VI b) { return _mm512_or_si512(a, b); }
KVILT_INLINE VI xor_i(VI a, VI b) { return _mm512_xor_si512(a, b); }
KVILT_INLINE VI add_i(VI a, VI b) { return _mm512_add_epi32(a, b); }
template <int n>
KVILT_INLINE VI shift_left(VI v) {
  return _mm512_slli_epi32(v, n);
}
template <int n>
KVILT_INLINE VI shift_right(VI v) {
  return _mm512_srli_epi32(v, n);
}
KVILT_INLINE VF as_float(VI v) { return _mm512_castsi512_ps(v); }
KVILT_INLINE VF load_half(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
KVILT_INLINE VF load_i8(const void* p) {
  return to_float(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
}
KVILT_INLINE VF load_u8(const void* p) {
  return to_float(_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
}
KVILT_INLINE VI dot_vnni(VI acc, VI w, VI x) { return _mm512_dpbusd_epi32(acc, w, x); }
KVILT_INLINE __m256 halves(VF v) { return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); }

#else  // AVX2; with 256-bit VNNI as VEX (avxvnni) or as EVEX (vnni256)

using VF = __m256;
using VI = __m256i;
constexpr int kLanes = 8;

KVILT_INLINE VF zero_f() { return _mm256_setzero_ps(); }
KVILT_INLINE VI zero_i() { return _mm256_setzero_si256(); }
KVILT_INLINE VF load(const float* p) { return _mm256_loadu_ps(p); }
KVILT_INLINE void store(float* p, VF v) { _mm256_storeu_ps(p, v); }
KVILT_INLINE __m256i first(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
KVILT_INLINE VF load_some(const float* p, int count) { return _mm256_maskload_ps(p, first(count)); }
KVILT_INLINE void store_some(float* p, VF v, int count) { _mm256_maskstore_ps(p, first(count), v); }
KVILT_INLINE VI load_bytes(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
KVILT_INLINE void store_bytes(void* p, VI v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
KVILT_INLINE VF set(float x) { return _mm256_set1_ps(x); }
KVILT_INLINE VI set_i(int x) { return _mm256_set1_epi32(x); }
KVILT_INLINE VF fma(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
KVILT_INLINE VF mul(VF a, VF b) { return _mm256_mul_ps(a, b); }
KVILT_INLINE VF add(VF a, VF b) { return _mm256_add_ps(a, b); }
KVILT_INLINE VF sub(VF a, VF b) { return _mm256_sub_ps(a, b); }
KVILT_INLINE VF div(VF a, VF b) { return _mm256_div_ps(a, b); }
KVILT_INLINE VF max_f(VF a, VF b) { return _mm256_max_ps(a, b); }
KVILT_INLINE VF min_f(VF a, VF b) { return _mm256_min_ps(a, b); }
KVILT_INLINE VF to_float(VI v) { return _mm256_cvtepi32_ps(v); }
KVILT_INLINE VI to_int(VF v) { return _mm256_cvtps_epi32(v); }  // to nearest, ties to even
KVILT_INLINE VI and_i(VI a, VI b) { return _mm256_and_si256(a, b); }
KVILT_INLINE VI or_i(VI a, VI b) { return _mm256_or_si256(a, b); }
KVILT_INLINE VI xor_i(VI a, VI b) { return _mm256_xor_si256(a, b); }
KVILT_INLINE VI add_i(VI a, VI b) { return _mm256_add_epi32(a, b); }
template <int n>
KVILT_INLINE VI shift_left(VI v) {
  return _mm256_slli_epi32(v, n);
}
template <int n>
KVILT_INLINE VI shift_right(VI v) {
  return _mm256_srli_epi32(v, n);
}
KVILT_INLINE VF as_float(VI v) { return _mm256_castsi256_ps(v); }
KVILT_INLINE VF load_half(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
KVILT_INLINE VF load_i8(const void* p) {
  return to_float(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
}
KVILT_INLINE VF load_u8(const void* p) {
  return to_float(_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
}
#if defined(KVILT_ISA_avxvnni)
KVILT_INLINE VI dot_vnni(VI acc, VI w, VI x) { return _mm256_dpbusd_avx_epi32(acc, w, x); }
#elif defined(KVILT_ISA_vnni256)
KVILT_INLINE VI dot_vnni(VI acc, VI w, VI x) { return _mm256_dpbusd_epi32(acc, w, x); }
#endif
KVILT_INLINE __m256 halves(VF v) { return v; }

#endif

KVILT_INLINE float sum(VF v) {
  const __m256 a = halves(v);
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

// Rows of a row block: the most whose sums fit the registers together with one decoded vector of weights.
#ifdef KVILT_512
constexpr int kMaxRows = 8;
#else
constexpr int kMaxRows = 6;
#endif

KVILT_INLINE int32_t load_word(const std::byte* p) {
  int32_t word;
  std::memcpy(&word, p, 4);
  return word;
}
KVILT_INLINE float load_float(const std::byte* p) {
  float value;
  std::memcpy(&value, p, 4);
  return value;
}

// Asks for the lines that a tile of m rows will write, before its work: outputs of many rows are far apart and in no
// cache, and a store buffer full of such misses took a sixth of a prefill's linear layers (512 rows, N = 4864).
KVILT_INLINE void claim(const float* y, int64_t stride, int m) {
  for (int r = 0; r < m; ++r) __builtin_prefetch(y + r * stride, 1);
}

// What every matmul does with a finished vector of outputs: + bias, then + what is there.
struct Output {
  float* y;
  const float* bias;
  int count;  // columns that exist; kLanes at most
  bool accumulate;
};
KVILT_INLINE void finish(VF value, const Output& out) {
  if (out.count == kLanes) {
    if (out.bias != nullptr) value = add(value, load(out.bias));
    if (out.accumulate) value = add(value, load(out.y));
    store(out.y, value);
  } else if (out.count > 0) {
    if (out.bias != nullptr) value = add(value, load_some(out.bias, out.count));
    if (out.accumulate) value = add(value, load_some(out.y, out.count));
    store_some(out.y, value, out.count);
  }
}

}  // namespace
}  // namespace kvilt::KVILT_ISA
