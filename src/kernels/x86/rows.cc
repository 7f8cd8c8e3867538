// kernels/x86/rows.cc: work along rows of activations: packing for matmul, RMSNorm, SiLU, GELU; built once per ISA.
// Invariants: every row is computed by itself, in an order that depends on its length only.
#include "kernels/x86/kernels.h"
#include "kernels/x86/linear_simd.h"

namespace kvilt::KVILT_ISA {

using x86::kGroup;
using x86::kRecordBytes;
using x86::kShared;
using x86::RowsIn;

namespace {

// 32 floats as 8 quads of int8 = round(x * inverse).
KVILT_INLINE __m256i quads_of(const float* x, float inverse) {
  const __m256 scale = _mm256_set1_ps(inverse);
  const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), scale));
  const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), scale));
  const __m256i c = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16), scale));
  const __m256i d = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 24), scale));
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
  return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

KVILT_INLINE float max_abs(const float* x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 a =
      _mm256_max_ps(_mm256_andnot_ps(sign, _mm256_loadu_ps(x)), _mm256_andnot_ps(sign, _mm256_loadu_ps(x + 8)));
  const __m256 b =
      _mm256_max_ps(_mm256_andnot_ps(sign, _mm256_loadu_ps(x + 16)), _mm256_andnot_ps(sign, _mm256_loadu_ps(x + 24)));
  const __m256 c = _mm256_max_ps(a, b);
  const __m128 d = _mm_max_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1));
  const __m128 e = _mm_max_ps(d, _mm_movehl_ps(d, d));
  return _mm_cvtss_f32(_mm_max_ss(e, _mm_movehdup_ps(e)));
}

KVILT_INLINE int32_t add4(__m128i v) {
  const __m128i a = _mm_add_epi32(v, _mm_unpackhi_epi64(v, v));
  return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 1)));
}

#ifndef KVILT_VNNI
// Minus the sums of the even lanes of 16 bits, and of the odd ones.
KVILT_INLINE int32_t minus_pairs(__m128i v) {
  const __m128i a = _mm_add_epi16(v, _mm_unpackhi_epi64(v, v));
  return _mm_cvtsi128_si32(_mm_sub_epi16(_mm_setzero_si128(), _mm_add_epi16(a, _mm_shuffle_epi32(a, 1))));
}
#endif

// Records are written where other cores have just read: their lines are asked for early, many at once, since stores
// would ask for one after the other.
constexpr int64_t kRecordsAhead = 24;

// One row on its own.
KVILT_INLINE void quantize_row(const float* x, int64_t groups, int64_t m, std::byte* record) {
  float peak = 0;
  for (int64_t g = 0; g < groups; ++g, x += kGroup, record += kRecordBytes * m) {
    __builtin_prefetch(record + kRecordsAhead * kRecordBytes * m, 1);
    if (g % kShared == 0) {
      peak = max_abs(x);
      for (int64_t i = 1; i < kShared && g + i < groups; ++i) {
        const float more = max_abs(x + i * kGroup);
        peak = more > peak ? more : peak;
      }
    }
    const float scale = peak * (1.0f / 127);
    const __m256i quads = quads_of(x, peak > 0 ? 127.0f / peak : 0.0f);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), quads);
    const __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    const int32_t low = add4(_mm256_castsi256_si128(sums)), high = add4(_mm256_extracti128_si256(sums, 1));
    int32_t words[13];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), quads);
    const float scaled_sum = scale * static_cast<float>(low + high);
    std::memcpy(&words[8], &scale, 4);
    std::memcpy(&words[9], &scaled_sum, 4);
#ifdef KVILT_VNNI
    words[10] = -(low + high);
    words[11] = -low;
    words[12] = -high;
#else
    words[11] = minus_pairs(_mm256_castsi256_si128(pairs));
    words[12] = minus_pairs(_mm256_extracti128_si256(pairs, 1));
    words[10] = minus_pairs(_mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)));
#endif
    for (int i = 0; i < 13; ++i) std::memcpy(record + i * m * 4, &words[i], 4);
  }
}

#ifdef KVILT_ISA_avx512

KVILT_INLINE __m256 pairs(__m256 a, __m256 b, bool high) {
  return high ? _mm256_unpackhi_ps(a, b) : _mm256_unpacklo_ps(a, b);
}
KVILT_INLINE __m256 twos(__m256 a, __m256 b, bool high) {
  return high ? _mm256_shuffle_ps(a, b, 0xee) : _mm256_shuffle_ps(a, b, 0x44);
}

// Lane r of the result: the largest of v[r]'s lanes.
KVILT_INLINE __m256 max_of_rows(const __m256 (&v)[8]) {
  __m256 half[4], quarter[2];
  KVILT_UNROLL
  for (int i = 0; i < 4; ++i) {
    half[i] = _mm256_max_ps(pairs(v[2 * i], v[2 * i + 1], false), pairs(v[2 * i], v[2 * i + 1], true));
  }
  KVILT_UNROLL
  for (int i = 0; i < 2; ++i) {
    quarter[i] = _mm256_max_ps(twos(half[2 * i], half[2 * i + 1], false), twos(half[2 * i], half[2 * i + 1], true));
  }
  return _mm256_max_ps(_mm256_permute2f128_ps(quarter[0], quarter[1], 0x20),
                       _mm256_permute2f128_ps(quarter[0], quarter[1], 0x31));
}

// Lane r of *low: the sum of v[r]'s lower four lanes; *high: of its upper four.
KVILT_INLINE void add_rows(const __m256i (&v)[8], __m256i* low, __m256i* high) {
  __m256i half[4], quarter[2];
  KVILT_UNROLL
  for (int i = 0; i < 4; ++i) {
    half[i] =
        _mm256_add_epi32(_mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]), _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
  }
  KVILT_UNROLL
  for (int i = 0; i < 2; ++i) {
    quarter[i] = _mm256_add_epi32(_mm256_unpacklo_epi64(half[2 * i], half[2 * i + 1]),
                                  _mm256_unpackhi_epi64(half[2 * i], half[2 * i + 1]));
  }
  *low = _mm256_permute2x128_si256(quarter[0], quarter[1], 0x20);
  *high = _mm256_permute2x128_si256(quarter[0], quarter[1], 0x31);
}

// Lane r of word j becomes lane j of word r.
KVILT_INLINE void transpose(__m256i (&v)[8]) {
  __m256 a[8], b[8];
  KVILT_UNROLL
  for (int i = 0; i < 4; ++i) {
    const __m256 even = _mm256_castsi256_ps(v[2 * i]), odd = _mm256_castsi256_ps(v[2 * i + 1]);
    a[2 * i] = pairs(even, odd, false);
    a[2 * i + 1] = pairs(even, odd, true);
  }
  KVILT_UNROLL
  for (int i = 0; i < 2; ++i) {
    KVILT_UNROLL
    for (int h = 0; h < 2; ++h) {
      b[4 * i + 2 * h] = twos(a[4 * i + h], a[4 * i + h + 2], false);
      b[4 * i + 2 * h + 1] = twos(a[4 * i + h], a[4 * i + h + 2], true);
    }
  }
  KVILT_UNROLL
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_castps_si256(_mm256_permute2f128_ps(b[i], b[i + 4], 0x20));
    v[i + 4] = _mm256_castps_si256(_mm256_permute2f128_ps(b[i], b[i + 4], 0x31));
  }
}

// A group of eight rows, a lane or a word each; the numbers are quantize_row's.
struct EightRows {
  __m256i words[8];  // 32 int8 of a row
  __m256 scale;
  __m256i low, high;  // sums of the first and the last 16
};

// Up to eight rows together, six times sooner than one by one: put(k, group) for each. Rows that are not there are like
// the first.
template <class Put>
KVILT_INLINE void quantize_eight(const RowsIn& in, const Put& put) {
  const float* x[8];
  for (int r = 0; r < 8; ++r) x[r] = in.x + (r < in.rows ? r : 0) * in.stride;
  EightRows out;
  out.scale = _mm256_setzero_ps();
  alignas(32) float inverse[8] = {};
  for (int64_t k = 0; k < in.cols; k += kGroup) {
    if (k % (kShared * kGroup) == 0) {
      const int64_t end = k + kShared * kGroup < in.cols ? k + kShared * kGroup : in.cols;
      __m256 peaks[8];
      KVILT_UNROLL
      for (int r = 0; r < 8; ++r) {
        VF v = max_f(_mm512_abs_ps(load(x[r] + k)), _mm512_abs_ps(load(x[r] + k + 16)));
        for (int64_t i = k + kGroup; i < end; i += 16) v = max_f(v, _mm512_abs_ps(load(x[r] + i)));
        peaks[r] = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
      }
      const __m256 peak = max_of_rows(peaks);
      out.scale = _mm256_mul_ps(peak, _mm256_set1_ps(1.0f / 127));
      const __mmask8 some = _mm256_cmp_ps_mask(peak, _mm256_setzero_ps(), _CMP_GT_OQ);
      _mm256_store_ps(inverse, _mm256_maskz_div_ps(some, _mm256_set1_ps(127.0f), peak));
    }
    __m256i sums[8];
    KVILT_UNROLL
    for (int r = 0; r < 8; ++r) {
      const VF by = set(inverse[r]);
      const __m128i low = _mm512_cvtsepi32_epi8(to_int(mul(load(x[r] + k), by)));
      const __m128i high = _mm512_cvtsepi32_epi8(to_int(mul(load(x[r] + k + 16), by)));
      out.words[r] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
      sums[r] = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), out.words[r]);
    }
    add_rows(sums, &out.low, &out.high);
    put(k, out);
  }
}

KVILT_INLINE __m256 scaled(__m256 scale, __m256i sum) { return _mm256_mul_ps(scale, _mm256_cvtepi32_ps(sum)); }

void quantize_rows(const RowsIn& in, std::byte* out) {
  const int64_t m = in.rows;
  const auto rows = static_cast<__mmask8>((1u << m) - 1);
  quantize_eight(in, [&](int64_t k, EightRows& group) {
    std::byte* record = out + k / kGroup * kRecordBytes * m;
    auto put = [&](int64_t i, __m256i v) { _mm256_mask_storeu_epi32(record + i * m * 4, rows, v); };
    const __m256i sum = _mm256_add_epi32(group.low, group.high), zero = _mm256_setzero_si256();
    transpose(group.words);
    KVILT_UNROLL
    for (int j = 0; j < 8; ++j) put(j, group.words[j]);
    put(8, _mm256_castps_si256(group.scale));
    put(9, _mm256_castps_si256(scaled(group.scale, sum)));
    put(10, _mm256_sub_epi32(zero, sum));
    put(11, _mm256_sub_epi32(zero, group.low));
    put(12, _mm256_sub_epi32(zero, group.high));
  });
}

#endif

void quantize(const RowsIn& in, std::byte* out) {
#ifdef KVILT_ISA_avx512
  static_assert(kMaxRows == 8);
  if (in.rows > 2) return quantize_rows(in, out);
#endif
  for (int64_t r = 0; r < in.rows; ++r) {
    quantize_row(in.x + r * in.stride, in.cols / kGroup, in.rows, out + r * 4);
  }
}

void interleave(const RowsIn& in, std::byte* out) {
  auto* to = reinterpret_cast<float*>(out);
  for (int64_t r = 0; r < in.rows; ++r) {
    const float* x = in.x + r * in.stride;
    for (int64_t k = 0; k < in.cols; ++k) to[k * in.rows + r] = x[k];
  }
}

void rms_norm(const RowsIn& in, const float* weight, float eps, float* y, int64_t y_stride) {
  for (int64_t r = 0; r < in.rows; ++r) {
    const float* x = in.x + r * in.stride;
    float* out = y + r * y_stride;
    VF squares = zero_f(), squares2 = zero_f();
    int64_t c = 0;
    for (; c + 2 * kLanes <= in.cols; c += 2 * kLanes) {
      const VF a = load(x + c), b = load(x + c + kLanes);
      squares = fma(a, a, squares);
      squares2 = fma(b, b, squares2);
    }
    for (; c < in.cols; c += kLanes) {
      const VF a = load_some(x + c, static_cast<int>(in.cols - c < kLanes ? in.cols - c : kLanes));
      squares = fma(a, a, squares);
    }
    const float mean = sum(add(squares, squares2)) / static_cast<float>(in.cols);
    const VF inverse = set(1.0f / __builtin_sqrtf(mean + eps));
    for (c = 0; c + kLanes <= in.cols; c += kLanes) store(out + c, mul(mul(load(x + c), inverse), load(weight + c)));
    if (c < in.cols) {
      const int left = static_cast<int>(in.cols - c);
      store_some(out + c, mul(mul(load_some(x + c, left), inverse), load_some(weight + c, left)), left);
    }
  }
}

// e^x for x in [-87, 88]: 2^n e^r with |r| <= ln 2 / 2 and the Taylor polynomial of degree 7 (error 1e-7 of it).
KVILT_INLINE VF exp_of(VF x) {
  x = max_f(set(-87.0f), min_f(set(88.0f), x));  // NaN in x passes both
  const VI n = to_int(mul(x, set(1.44269504f)));
  const VF nf = to_float(n);
  VF r = fma(nf, set(-0.693359375f), x);
  r = fma(nf, set(2.12194440e-4f), r);
  VF p = set(1.0f / 5040);
  p = fma(p, r, set(1.0f / 720));
  p = fma(p, r, set(1.0f / 120));
  p = fma(p, r, set(1.0f / 24));
  p = fma(p, r, set(1.0f / 6));
  p = fma(p, r, set(0.5f));
  p = fma(p, r, set(1.0f));
  p = fma(p, r, set(1.0f));
  return mul(p, as_float(shift_left<23>(add_i(n, set_i(127)))));
}

// gate / (1 + e^minus) * up: SiLU with minus = -gate, GELU with -2 u, since (1 + tanh u) / 2 = 1 / (1 + e^-2u).
KVILT_INLINE VF gated(VF gate, VF minus, VF up) { return mul(div(gate, add(set(1.0f), exp_of(minus))), up); }
KVILT_INLINE VF silu(VF gate, VF up) { return gated(gate, sub(zero_f(), gate), up); }
KVILT_INLINE VF gelu(VF gate, VF up) {
  constexpr float kSlope = -1.5957691216f;  // -2 sqrt(2 / pi)
  const VF minus = mul(gate, fma(mul(gate, gate), set(0.044715f * kSlope), set(kSlope)));
  return gated(gate, minus, up);
}

// kSwigluLimit and kSwigluSlope of backend.h. NaN passes both limits.
KVILT_INLINE VF clamped_swiglu(VF gate, VF up) {
  constexpr float kSwigluLimit = 7, kSwigluSlope = 1.702f;
  const VF limit = set(kSwigluLimit), g = min_f(limit, gate), u = max_f(set(-kSwigluLimit), min_f(limit, up));
  return gated(g, mul(g, set(-kSwigluSlope)), add(u, set(1.0f)));
}

template <VF (*kGate)(VF gate, VF up)>
void gate_rows(float* gate, const float* up, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(gate + i, kGate(load(gate + i), load(up + i)));
  if (i < count) {
    const int left = static_cast<int>(count - i);
    store_some(gate + i, kGate(load_some(gate + i, left), load_some(up + i, left)), left);
  }
}

}  // namespace

#ifdef KVILT_ISA_avx512
void quantize_tiles(const RowsIn& in, std::byte* out) {
  using x86::kTileRecordBytes;
  using x86::kTileRows;
  static_assert(kTileRows == 16);
  for (int64_t first = 0; first < kTileRows; first += 8) {
    const int64_t rows = in.rows - first < 8 ? in.rows - first : 8;
    const RowsIn eight = rows > 0 ? RowsIn{in.x + first * in.stride, in.stride, rows, in.cols} : in;
    quantize_eight(eight, [&](int64_t k, const EightRows& group) {
      std::byte* record = out + k / kGroup * kTileRecordBytes * kTileRows;
      KVILT_UNROLL
      for (int r = 0; r < 8; ++r) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(record + (first + r) * kGroup), group.words[r]);
      }
      auto* scales = reinterpret_cast<float*>(record + kGroup * kTileRows);
      _mm256_storeu_ps(scales + first, group.scale);
      _mm256_storeu_ps(scales + kTileRows + first, scaled(group.scale, _mm256_add_epi32(group.low, group.high)));
    });
  }
}
#endif

// Defined in matmul.cc and matmul_float.cc of the same ISA.
namespace quantised {
void matmul_q4_0(const x86::MatmulPart&);
void matmul_q4_1(const x86::MatmulPart&);
void matmul_q5_0(const x86::MatmulPart&);
void matmul_q5_1(const x86::MatmulPart&);
void matmul_q8_0(const x86::MatmulPart&);
void matmul_q4_k(const x86::MatmulPart&);
void matmul_q5_k(const x86::MatmulPart&);
void matmul_q6_k(const x86::MatmulPart&);
}  // namespace quantised
namespace floats {
void matmul_f32(const x86::MatmulPart&);
void matmul_f16(const x86::MatmulPart&);
void matmul_bf16(const x86::MatmulPart&);
}  // namespace floats

const x86::Kernels kKernels = {
    kMaxRows,
    quantize,
    interleave,
    {floats::matmul_f32, floats::matmul_f16, floats::matmul_bf16, quantised::matmul_q4_0, quantised::matmul_q4_1,
     quantised::matmul_q5_0, quantised::matmul_q5_1, quantised::matmul_q8_0, quantised::matmul_q4_k,
     quantised::matmul_q5_k, quantised::matmul_q6_k, nullptr},
    rms_norm,
    gate_rows<silu>,
    gate_rows<gelu>,
    gate_rows<clamped_swiglu>,
};

}  // namespace kvilt::KVILT_ISA
