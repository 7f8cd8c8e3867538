// kernels/x86/attend_tile.cc: the arithmetic of attention, compiled once per ISA (see attend_tile.h for the contracts).
// Cost: on Zen 4 about 0.8 of the FMA peak over the whole block at E = 64; softmax takes a tenth of the time.
#include "kernels/x86/attend_tile.h"

#include "kernels/x86/attend_simd.h"
#include "kernels/x86/product_tile.h"
#include "kernels/x86/rotate_tile.h"

namespace kvilt::KVILT_ISA {
namespace {

using x86::Element;
using x86::kLanes;
using x86::kNoScore;
using x86::TileShape;
using x86::TileState;
using x86::ValueTile;
using x86::WantedColumns;

constexpr float kLog2E = 1.44269504089f;
constexpr double kLn2 = 0.69314718055994530942;

// ---- Gathering ------------------------------------------------------------------------------------------------------

// kVec elements from element e on.
template <Element kType>
KVILT_INLINE Vec load_elements(const void* row, int64_t e) {
  if constexpr (kType == Element::kF32) return load(static_cast<const float*>(row) + e);
  if constexpr (kType == Element::kF16) return load_f16(static_cast<const uint16_t*>(row) + e);
  if constexpr (kType == Element::kBF16) return load_bf16(static_cast<const uint16_t*>(row) + e);
  if constexpr (kType == Element::kI8) return load_i8(static_cast<const int8_t*>(row) + e);
}

// As load_elements, where only `count` elements are left in the row; zeros follow.
template <Element kType>
Vec load_tail(const void* row, int64_t e, int count) {
  constexpr int kBytes = kType == Element::kF32 ? 4 : kType == Element::kI8 ? 1 : 2;
  alignas(64) char buffer[4 * kVec] = {};
  __builtin_memcpy(buffer, static_cast<const char*>(row) + e * kBytes, static_cast<size_t>(count * kBytes));
  return load_elements<kType>(buffer, 0);
}

// What a row's elements are multiplied by.
template <Element kType>
KVILT_INLINE float scale_of(const TileShape& shape, const void* row) {
  float scale = 1;
  if (kType == Element::kI8) __builtin_memcpy(&scale, static_cast<const char*>(row) + shape.E, sizeof scale);
  return scale;
}

// Where element e of a head goes if interleaved pairs are laid out as halves.
KVILT_INLINE int stored_at(const TileShape& shape, int e) {
  if (!shape.interleaved || e >= shape.rotary) return e;
  return e % 2 == 0 ? e / 2 : shape.rotary / 2 + e / 2;
}

template <Element kType>
void gather_keys_of(const TileShape& shape, const void* const* keys, uint64_t wanted, float* kt) {
  const int whole = shape.E / kVec * kVec;
  for (int j = 0; j < kBlock; j += kVec) {  // keys in the outer loop: memory is read row by row
    if ((wanted >> j & kVecColumns) == 0) continue;
    alignas(64) float scales[kVec];
    for (int i = 0; i < kVec; ++i) scales[i] = scale_of<kType>(shape, keys[j + i]);
    const Vec scale = load(scales);
    for (int e = 0; e < whole; e += kVec) {
      Vec r[kVec];
      KVILT_UNROLL
      for (int i = 0; i < kVec; ++i) r[i] = load_elements<kType>(keys[j + i], e);
      transpose(r);
      if constexpr (kType == Element::kI8) {
        KVILT_UNROLL
        for (int i = 0; i < kVec; ++i) r[i] = mul(r[i], scale);
      }
      if (!shape.interleaved) {
        float* to = kt + e * kBlock + j;
        KVILT_UNROLL
        for (int i = 0; i < kVec; ++i) store(to + i * kBlock, r[i]);
      } else {
        KVILT_UNROLL
        for (int i = 0; i < kVec; ++i) store(kt + stored_at(shape, e + i) * kBlock + j, r[i]);
      }
    }
    if (whole == shape.E) continue;
    Vec r[kVec];
    KVILT_UNROLL
    for (int i = 0; i < kVec; ++i) r[i] = load_tail<kType>(keys[j + i], whole, shape.E - whole);
    transpose(r);
    alignas(64) float tail[kVec][kVec];
    KVILT_UNROLL
    for (int i = 0; i < kVec; ++i) store(tail[i], kType == Element::kI8 ? mul(r[i], scale) : r[i]);
    for (int e = whole; e < shape.E; ++e) store(kt + stored_at(shape, e) * kBlock + j, load(tail[e - whole]));
  }
}

template <Element kType>
void gather_values_of(const TileShape& shape, const void* const* values, int first, int last, float* v) {
  const int whole = shape.E / kVec * kVec;
  v += int64_t{first} * shape.width;
  for (int j = first; j < last; ++j, v += shape.width) {
    const Vec scale = set1(scale_of<kType>(shape, values[j]));
    const auto scaled = [&scale](Vec x) __attribute__((always_inline)) {
      return kType == Element::kI8 ? mul(x, scale) : x;
    };
    for (int e = 0; e < whole; e += kVec) store(v + e, scaled(load_elements<kType>(values[j], e)));
    for (int e = whole; e < shape.width; e += kVec) {
      store(v + e, e < shape.E ? scaled(load_tail<kType>(values[j], e, shape.E - e)) : zero());
    }
  }
}

void gather_keys(const TileShape& shape, const void* const* keys, uint64_t wanted, float* kt) {
  switch (shape.kv) {
    case Element::kF32:
      return gather_keys_of<Element::kF32>(shape, keys, wanted, kt);
    case Element::kF16:
      return gather_keys_of<Element::kF16>(shape, keys, wanted, kt);
    case Element::kBF16:
      return gather_keys_of<Element::kBF16>(shape, keys, wanted, kt);
    case Element::kI8:
      return gather_keys_of<Element::kI8>(shape, keys, wanted, kt);
  }
}

void gather_values(const TileShape& shape, const void* const* values, int first, int last, float* v) {
  switch (shape.kv) {
    case Element::kF32:
      return gather_values_of<Element::kF32>(shape, values, first, last, v);
    case Element::kF16:
      return gather_values_of<Element::kF16>(shape, values, first, last, v);
    case Element::kBF16:
      return gather_values_of<Element::kBF16>(shape, values, first, last, v);
    case Element::kI8:
      return gather_values_of<Element::kI8>(shape, values, first, last, v);
  }
}

// Rotates a head laid out as halves back by `rotation`.
KVILT_INLINE void rotate_back(const float* rotation, int half, float* x) {
  int i = 0;
  for (; i + kVec <= half; i += kVec) {
    const Vec a = load(x + i), b = load(x + half + i), c = load(rotation + i), s = load(rotation + half + i);
    store(x + i, add(mul(a, c), mul(b, s)));
    store(x + half + i, sub(mul(b, c), mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i], c = rotation[i], s = rotation[half + i];
    x[i] = a * c + b * s;
    x[half + i] = b * c - a * s;
  }
}

void load_queries(const TileShape& shape, const float* q, int64_t stride, int rows, const float* rotation, float* out) {
  const int E = shape.E, half = shape.rotary / 2;
  for (int r = 0; r < rows; ++r) {
    for (int h = 0; h < shape.group; ++h, out += E) {
      const float* from = q + r * stride + h * E;
      int e = 0;
      if (shape.interleaved) {
        for (int i = 0; i < half; ++i) {
          out[i] = from[2 * i] * shape.scale;
          out[half + i] = from[2 * i + 1] * shape.scale;
        }
        e = shape.rotary;
      }
      for (; e + kVec <= E; e += kVec) store(out + e, mul(load(from + e), set1(shape.scale)));
      for (; e < E; ++e) out[e] = from[e] * shape.scale;
      if (rotation != nullptr) rotate_back(rotation, half, out);
    }
  }
}

// ---- Products -------------------------------------------------------------------------------------------------------

struct Fp32 {
  using Left = float;
  using Right = Vec;
  static constexpr bool kSpreadAhead = true, kScalesColumns = false;
  static constexpr int kChains = 1;
  KVILT_INLINE Vec broadcast(float x) { return set1(x); }
  KVILT_INLINE Vec load_right(const float* p) { return load(p); }
  KVILT_INLINE Vec multiply_add(Vec a, Vec b, Vec sum) { return fma(a, b, sum); }
};

void scores(const TileShape& shape, const float* q, int lines, const float* kt, WantedColumns wanted, float* s) {
  masked_product<Fp32>({.a = q,
                        .a_stride = shape.E,
                        .b = kt,
                        .b_stride = kBlock,
                        .k = shape.E,
                        .c = s,
                        .c_stride = kBlock,
                        .mask = wanted.mask,
                        .ahead = wanted.ahead,
                        .ahead_last = shape.row_bytes},
                       lines);
}

void permute(int lines, const int32_t* place, float* s) {
#ifdef __AVX512F__
  __m512i index[4];
  __mmask16 upper[4];
  for (int n = 0; n < 4; ++n) {
    index[n] = _mm512_loadu_si512(place + 16 * n);  // bits 0-4 choose among two vectors, bit 5 between the pairs
    upper[n] = _mm512_test_epi32_mask(index[n], _mm512_set1_epi32(32));
  }
  for (int line = 0; line < lines; ++line, s += kBlock) {
    const Vec a = load(s), b = load(s + 16), c = load(s + 32), d = load(s + 48);
    for (int n = 0; n < 4; ++n) {
      store(s + 16 * n,
            select(upper[n], _mm512_permutex2var_ps(c, index[n], d), _mm512_permutex2var_ps(a, index[n], b)));
    }
  }
#else
  for (int line = 0; line < lines; ++line, s += kBlock) {
    Vec x[kBlockVecs];
    for (int n = 0; n < kBlockVecs; ++n) {
      x[n] = _mm256_i32gather_ps(s, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(place + n * kVec)), 4);
    }
    for (int n = 0; n < kBlockVecs; ++n) store(s + n * kVec, x[n]);
  }
#endif
}

void add_values(const TileShape& shape, int lines, const float* p, const ValueTile& v, const float* scale_back,
                float* acc) {
  product<Fp32>({.a = p + v.first,
                 .a_stride = kBlock,
                 .b = v.data,
                 .b_stride = v.stride,
                 .k = v.last - v.first,
                 .c = acc,
                 .c_stride = shape.width,
                 .scale_back = scale_back,
                 .ahead = v.ahead,
                 .ahead_last = shape.row_bytes},
                lines, shape.width / kVec);
}

// ---- Softmax --------------------------------------------------------------------------------------------------------

KVILT_INLINE void load_scores(const float* s, uint64_t visible, Vec* x) {
  for (int n = 0; n < kBlockVecs; ++n) x[n] = load(s + n * kVec);
  if (visible == ~uint64_t{0}) return;
  for (int n = 0; n < kBlockVecs; ++n) x[n] = select(lanes(visible, n), x[n], set1(-__builtin_inff()));
}

// Adds kBlockVecs vectors as a balanced tree.
KVILT_INLINE Vec tree_sum(const Vec* x) {
  Vec t[kBlockVecs / 2];
  for (int n = 0; n < kBlockVecs / 2; ++n) t[n] = add(x[2 * n], x[2 * n + 1]);
  for (int left = kBlockVecs / 4; left > 0; left /= 2) {
    for (int n = 0; n < left; ++n) t[n] = add(t[2 * n], t[2 * n + 1]);
  }
  return t[0];
}

void softmax(const TileShape& shape, int rows, const uint64_t* visible, float* s, const TileState& state,
             float* scale_back) {
  int line = 0;
  for (int r = 0; r < rows; ++r) {
    for (int h = 0; h < shape.group; ++h, ++line, s += kBlock) {
      Vec x[kBlockVecs];
      load_scores(s, visible[r], x);
      Vec top = x[0];
      for (int n = 1; n < kBlockVecs; ++n) top = max(top, x[n]);
      const float old_max = state.max[line], block_max = hmax(top);
      float* lane = state.lane + line * kLanes;
      Vec sum = load(lane);
      scale_back[line] = 1;
      if (block_max > old_max) {
        const Vec back = exp2(set1(old_max - block_max));
        scale_back[line] = back[0];
        sum = mul(sum, back);
        state.max[line] = block_max;
      }
      const Vec base = set1(state.max[line]);
      for (int n = 0; n < kBlockVecs; ++n) {
        x[n] = (visible[r] >> (n * kVec) & kVecColumns) == 0 ? zero() : exp2(sub(x[n], base));
        store(s + n * kVec, x[n]);
      }
      store(lane, add(sum, tree_sum(x)));
    }
  }
}

void merge(const TileShape& shape, int lines, const TileState& from, const TileState& into) {
  for (int line = 0; line < lines; ++line) {
    const float top = from.max[line] > into.max[line] ? from.max[line] : into.max[line];
    const Vec f = exp2(set1(from.max[line] - top)), t = exp2(set1(into.max[line] - top));
    into.max[line] = top;
    float* lane = into.lane + line * kLanes;
    store(lane, fma(load(from.lane + line * kLanes), f, mul(load(lane), t)));
    const float* a = from.acc + int64_t{line} * shape.width;
    float* acc = into.acc + int64_t{line} * shape.width;
    for (int e = 0; e < shape.width; e += kVec) store(acc + e, fma(load(a + e), f, mul(load(acc + e), t)));
  }
}

void finish(const TileShape& shape, int rows, const TileState& state, float* out, int64_t stride, float* lse) {
  int line = 0;
  for (int r = 0; r < rows; ++r) {
    for (int h = 0; h < shape.group; ++h, ++line) {
      const float sum = hsum(load(state.lane + line * kLanes));
      const float over = sum == 0 ? 0 : 1 / sum;
      const float* acc = state.acc + int64_t{line} * shape.width;
      float* y = out + r * stride + h * shape.E;
      // + 0: terms of masked keys may flip a zero's sign.
      int e = 0;
      for (; e + kVec <= shape.E; e += kVec) store(y + e, add(mul(load(acc + e), set1(over)), zero()));
      for (; e < shape.E; ++e) y[e] = acc[e] * over + 0.0f;
      if (lse == nullptr) continue;
      lse[line] = sum == 0 ? -__builtin_inff()
                           : static_cast<float>((state.max[line] + __builtin_log2(static_cast<double>(sum))) * kLn2);
    }
  }
}

void add_columns(const TileShape& shape, int rows, const uint64_t* visible, const float* s, const float* lse,
                 float* columns) {
  Vec total[kBlockVecs];
  for (int n = 0; n < kBlockVecs; ++n) total[n] = load(columns + n * kVec);
  int line = 0;
  for (int r = 0; r < rows; ++r) {
    for (int h = 0; h < shape.group; ++h, ++line, s += kBlock) {
      if (visible[r] == 0) continue;
      Vec x[kBlockVecs];
      load_scores(s, visible[r], x);
      const Vec base = set1(lse[line] * kLog2E);
      for (int n = 0; n < kBlockVecs; ++n) total[n] = add(total[n], exp2(min(set1(1.0f), sub(x[n], base))));
    }
  }
  for (int n = 0; n < kBlockVecs; ++n) store(columns + n * kVec, total[n]);
}

void norms(const TileShape& shape, const float* v, float* norms) {
  for (int j = 0; j < kBlock; ++j, v += shape.width) {
    Vec sum = zero();
    for (int e = 0; e < shape.width; e += kVec) sum = fma(load(v + e), load(v + e), sum);
    norms[j] = __builtin_sqrtf(hsum(sum));
  }
}

}  // namespace

extern const x86::TileKernels kAttendTiles = {load_queries, gather_keys, gather_values, scores, permute,
                                              softmax,      add_values,  merge,         finish, add_columns,
                                              norms,        rope_row,    angles};

}  // namespace kvilt::KVILT_ISA
