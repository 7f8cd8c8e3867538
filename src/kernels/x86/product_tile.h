// kernels/x86/product_tile.h: the small product that attention is made of, for fp32 (attend_tile.cc) and for pairs of
// bf16 (attend_bf16_tile.cc).
// Idea:       scores and weighted values are the same product: up to kProductRows lines x kTileVecs vectors of sums in
//             registers, one broadcast and one multiply-add per sum and step.
// Invariants: every sum runs over its inner dimension one by one, from a start that is the line's own, so a line's bits
//             do not depend on how many lines share the registers.
// Role:       for per-ISA files only; everything has internal linkage, so that nothing is shared with other files.
#pragma once

#include "kernels/x86/attend_simd.h"
#include "kernels/x86/attend_tile.h"

namespace kvilt::KVILT_ISA {
namespace {

using x86::kBlock;

constexpr int kBlockVecs = kBlock / kVec;
constexpr uint64_t kVecColumns = (uint64_t{1} << kVec) - 1;

// c (lines x columns) = init + a (lines x k, broadcast) . b (k x columns). An Arithmetic says what a step multiplies:
//   Left, Right                   an element of a; a vector of b, or an element of a in all its lanes
//   broadcast(Left), load_right(const float*), multiply_add(Right a, Right b, Vec sum)
//   kSpreadAhead                  false: the first tile of all fetches `ahead`; true: the first tile of each kTileVecs
//                                 vectors fetches a share of every row (too many requests at once wait)
//   kScalesColumns                may have a column_scale
//   kChains                       2: each sum is that of the first half of k and that of the second, added at the end
template <class Arithmetic>
struct Product {
  const typename Arithmetic::Left* a = nullptr;
  int64_t a_stride = 0;
  const float* b = nullptr;
  int64_t b_stride = 0;
  int k = 0;
  float* c = nullptr;
  int64_t c_stride = 0;
  const float* scale_back = nullptr;    // init = c * scale_back[line]; null: init = 0, and the store is masked
  uint64_t mask = 0;                    // columns to store, bit 0 at c
  const void* const* ahead = nullptr;   // kBlock rows to fetch into the cache meanwhile, or null
  int ahead_first = 0, ahead_last = 0;  // the bytes of each row to fetch
  const float* column_scale = nullptr;  // of what is stored, if scale_back is null; null: 1
};

template <class Arithmetic>
KVILT_INLINE void fetch_row(const Product<Arithmetic>& p, int row) {
  const char* bytes = static_cast<const char*>(p.ahead[row]);
  for (int n = p.ahead_first; n < p.ahead_last; n += 64) _mm_prefetch(bytes + n, _MM_HINT_T1);
}

template <int kLines, int kVecs, bool kAhead, class Arithmetic>
KVILT_INLINE void product_tile(const Product<Arithmetic>& p) {
  constexpr bool kTwo = Arithmetic::kChains == 2;
  const int steps = p.k / Arithmetic::kChains;
  Vec sum[kLines][kVecs], other[kLines][kVecs];
#pragma GCC unroll 8
  for (int i = 0; i < kLines; ++i) {
#pragma GCC unroll 4
    for (int n = 0; n < kVecs; ++n) {
      other[i][n] = zero();
      sum[i][n] = p.scale_back == nullptr ? zero() : mul(load(p.c + i * p.c_stride + n * kVec), set1(p.scale_back[i]));
    }
  }
  const auto* a = p.a;
  const float* b = p.b;
  int fetched = 0;
  const int rows_a_step = kAhead && !Arithmetic::kSpreadAhead ? (kBlock + steps - 1) / steps : 0;
  for (int k = 0; k < steps; ++k, ++a, b += p.b_stride) {
    if constexpr (kAhead && Arithmetic::kSpreadAhead) {
      if (k < kBlock) fetch_row(p, k);
    } else if constexpr (kAhead) {
      for (int n = 0; n < rows_a_step && fetched < kBlock; ++n, ++fetched) fetch_row(p, fetched);
    }
    typename Arithmetic::Right bk[kVecs];
#pragma GCC unroll 4
    for (int n = 0; n < kVecs; ++n) bk[n] = Arithmetic::load_right(b + n * kVec);
#pragma GCC unroll 8
    for (int i = 0; i < kLines; ++i) {
      const auto ak = Arithmetic::broadcast(a[i * p.a_stride]);
#pragma GCC unroll 4
      for (int n = 0; n < kVecs; ++n) sum[i][n] = Arithmetic::multiply_add(ak, bk[n], sum[i][n]);
    }
    if constexpr (kTwo) {
#pragma GCC unroll 4
      for (int n = 0; n < kVecs; ++n) bk[n] = Arithmetic::load_right(b + steps * p.b_stride + n * kVec);
#pragma GCC unroll 8
      for (int i = 0; i < kLines; ++i) {
        const auto ak = Arithmetic::broadcast(a[i * p.a_stride + steps]);
#pragma GCC unroll 4
        for (int n = 0; n < kVecs; ++n) other[i][n] = Arithmetic::multiply_add(ak, bk[n], other[i][n]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kLines; ++i) {
#pragma GCC unroll 4
    for (int n = 0; n < kVecs; ++n) {
      float* c = p.c + i * p.c_stride + n * kVec;
      if constexpr (kTwo) sum[i][n] = add(sum[i][n], other[i][n]);
      if (p.scale_back != nullptr) {
        store(c, sum[i][n]);
      } else if (!Arithmetic::kScalesColumns || p.column_scale == nullptr) {
        store_lanes(c, lanes(p.mask, n), sum[i][n]);
      } else {
        store_lanes(c, lanes(p.mask, n), mul(sum[i][n], load(p.column_scale + n * kVec)));
      }
    }
  }
}

template <int kVecs, bool kAhead, int kLines, class Arithmetic>
void product_few(const Product<Arithmetic>& p, int lines) {
  if constexpr (kLines > 1) {
    if (lines < kLines) return product_few<kVecs, kAhead, kLines - 1>(p, lines);
  }
  product_tile<kLines, kVecs, kAhead>(p);
}

template <int kVecs, class Arithmetic>
void product_lines(Product<Arithmetic> p, int lines) {
  constexpr int kMost = kFewRows / Arithmetic::kChains, kUsual = kProductRows / Arithmetic::kChains;
  for (int tiles = lines <= kMost ? 1 : (lines + kUsual - 1) / kUsual; tiles > 0; --tiles) {
    const int count = (lines + tiles - 1) / tiles;  // even: the sums of a single line would wait
    if (p.ahead != nullptr) {  // by the first tile of a product: its memory comes while the others compute
      product_few<kVecs, true, kMost>(p, count);
      p.ahead = nullptr;
    } else {
      product_few<kVecs, false, kMost>(p, count);
    }
    p.a += count * p.a_stride;
    p.c += count * p.c_stride;
    if (p.scale_back != nullptr) p.scale_back += count;
    lines -= count;
  }
}

// `vecs` vectors of columns for all lines.
template <class Arithmetic>
void product(Product<Arithmetic> p, int lines, int vecs) {
  const int row_lines = (p.ahead_last + 63) / 64;
  for (int done = 0; done < vecs;) {
    const int n = vecs - done < kTileVecs ? vecs - done : kTileVecs;
    if constexpr (Arithmetic::kSpreadAhead) {
      p.ahead_first = row_lines * done / vecs * 64;
      p.ahead_last = row_lines * (done + n) / vecs * 64;
    }
    switch (n) {
      case 1:
        product_lines<1>(p, lines);
        break;
      case 2:
        product_lines<2>(p, lines);
        break;
#ifdef __AVX512F__
      case 3:
        product_lines<3>(p, lines);
        break;
      default:
        product_lines<4>(p, lines);
        break;
#else
      default:
        break;
#endif
    }
    done += n;
    if constexpr (!Arithmetic::kSpreadAhead) p.ahead = nullptr;
    p.b += n * kVec;
    p.c += n * kVec;
    if constexpr (Arithmetic::kScalesColumns) {
      if (p.column_scale != nullptr) p.column_scale += n * kVec;
    }
    p.mask = n * kVec < 64 ? p.mask >> (n * kVec) : 0;
  }
}

// The product over the block's columns of p.mask only: p.b, p.c and p.column_scale are those of column 0.
template <class Arithmetic>
KVILT_INLINE void masked_product(const Product<Arithmetic>& block, int lines) {
  const void* const* ahead = block.ahead;
  for (int n = 0; n < kBlockVecs;) {  // runs of vectors that have a wanted column
    if ((block.mask >> (n * kVec) & kVecColumns) == 0) {
      ++n;
      continue;
    }
    int end = n + 1;
    while (end < kBlockVecs && (block.mask >> (end * kVec) & kVecColumns) != 0) ++end;
    Product<Arithmetic> p = block;
    p.b += n * kVec;
    p.c += n * kVec;
    if constexpr (Arithmetic::kScalesColumns) {
      if (p.column_scale != nullptr) p.column_scale += n * kVec;
    }
    p.mask >>= n * kVec;
    p.ahead = ahead;
    product(p, lines, end - n);
    ahead = nullptr;
    n = end;
  }
}

}  // namespace
}  // namespace kvilt::KVILT_ISA
