// kernels/x86/matmul.cc: quantised weights x int8 activations; built once per ISA.
// Role:       Kernels::matmul for Q formats; layouts and the arithmetic's order: kernels.h.
// Idea:       weights stay unsigned (their offset is paid once per row and group, as the start value of the integer
//             sum), activations are signed and broadcast: what vpdpbusd wants. Weights are decoded in registers for
//             kMaxRows rows at a time; decoding them into panels first was no faster for any number of rows (8 rows on
//             Zen 4: 77 % of the VNNI peak in registers, 75 % from panels), so there is one kernel.
// Invariants: int dots are exact, floats follow kernels.h.
// Not here:   reading packed weights (packed.h), many rows in AMX's tiles (matmul_tiles.cc), splitting into parts
//             (backend.cc), packing (pack.cc).
#include "kernels/x86/packed.h"

namespace kvilt::KVILT_ISA {

using x86::kRecordBytes;

namespace {

// ---- Integer dots --------------------------------------------------------------------------------------------------
//
// A sum begins with start(), takes in quads one after the other (add_quad), kFits of them at most, and ends with
// total(): for each lane the dot of its quads with the row's, where weights have an offset of the weights less it.

template <DType type>
constexpr bool kOffset = !Packed<type>::kFormat.mins && !kWeightsSigned<Packed<type>::kFormat.bits>;

#ifdef KVILT_VNNI

template <DType type>
constexpr int kFits = 8;
// minus_sum: of the row's int8 in these quads.
template <DType type>
KVILT_INLINE VI start(const std::byte* minus_sum) {
  if constexpr (!kOffset<type>) return zero_i();
  return shift_left<Packed<type>::kFormat.bits - 1>(set_i(load_word(minus_sum)));
}
template <DType type>
KVILT_INLINE VI add_quad(VI sum, VI w, const std::byte* x) {
#ifdef KVILT_512
  // GCC 12 loads the broadcast into a register first, an instruction more for each dot.
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const int32_t*>(x)));
  return sum;
#else
  return dot_vnni(sum, w, set_i(load_word(x)));
#endif
}
template <DType type>
KVILT_INLINE VI total(VI sum) {
  return sum;
}

#else

// vpmaddubsw adds two products in 16 bits, and a sum of these stays there as long as what it ends with fits, since
// additions wrap: 16 products of 127 with 4-bit weights or with 5-bit ones less 16 (32512), 8 with 5 bits, or with 6
// less 32. One vpmaddwd ends it. Of 8-bit weights only 2 fit, and only as |w| <= 128, with w's sign given to x: their
// sums are of 32 bits.
template <DType type>
constexpr int kFits = Packed<type>::kFormat.bits == 6 || (Packed<type>::kFormat.bits == 5 && !kOffset<type>) ? 4 : 8;
// minus_sum: two sums of 16 bits, of the first and of the last two int8 of each of the row's quads.
template <DType type>
KVILT_INLINE VI start(const std::byte* minus_sum) {
  if constexpr (!kOffset<type>) return zero_i();
  return _mm256_slli_epi16(set_i(load_word(minus_sum)), Packed<type>::kFormat.bits - 1);
}
// The additions are in assembly to keep their order: GCC makes a tree of them, which wants more registers than there
// are (Zen 1, 4 bits, by itself: 44 instead of 54 GOP/s).
template <DType type>
KVILT_INLINE VI add_quad(VI sum, VI w, const std::byte* x) {
  const VI row = set_i(load_word(x));
  if constexpr (kWeightsSigned<Packed<type>::kFormat.bits>) {
    const VI pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(row, w));
    const VI quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(quads));
  } else {
    const VI pairs = _mm256_maddubs_epi16(w, row);
    asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(pairs));
  }
  return sum;
}
template <DType type>
KVILT_INLINE VI total(VI sum) {
  if constexpr (kWeightsSigned<Packed<type>::kFormat.bits>) return sum;
  return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

#endif

// ---- The tile ------------------------------------------------------------------------------------------------------

// Weights that come later, asked for while a tile works: these groups so much further on, or null.
struct Ahead {
  const std::byte* far = nullptr;   // into L2
  const std::byte* near = nullptr;  // not so far, and once more: into L1
};

template <DType type>  // with its part of the scales
constexpr int64_t kGroupBytes = Packed<type>::kChunk.bytes / Packed<type>::kChunk.groups;

// What a tile asks for while it works on group g: its lines of `far`, all at once.
template <DType type>
struct AsksOnce {
  __attribute__((always_inline)) AsksOnce(const Ahead& ahead, int64_t g) {
    if (ahead.far == nullptr) return;
    const auto* at = reinterpret_cast<const char*>(ahead.far + g * kGroupBytes<type>);
    KVILT_UNROLL
    for (int64_t i = 0; i < kGroupBytes<type>; i += 64) _mm_prefetch(at + i, _MM_HINT_T1);
  }
  template <int j>
  __attribute__((always_inline)) void before_quad() const {}
};

// Its lines far and near, one of each before every product: gate and up (Q5_0) come at 32.1 GB/s, and at 30.3 with all
// lines before the first product. GCC leaves the assembly between the products.
template <DType type>
struct AsksTwice {
  const char *far, *near;
  __attribute__((always_inline)) AsksTwice(const Ahead& ahead, int64_t g)
      : far(reinterpret_cast<const char*>(ahead.far + g * kGroupBytes<type>)),
        near(reinterpret_cast<const char*>(ahead.near + g * kGroupBytes<type>)) {
    asm("" : "+r"(far), "+r"(near));  // else GCC keeps each line's address in a register of its own, and has too few
  }
  template <int j>
  __attribute__((always_inline)) void before_quad() const {
    constexpr int64_t kEnd = j < 7 ? 64 * (j + 1) : kGroupBytes<type>;
    KVILT_UNROLL
    for (int64_t i = 64 * j; i < kEnd && i < kGroupBytes<type>; i += 64) {
      asm volatile("prefetcht0 %0" : : "m"(near[i]));
      asm volatile("prefetcht1 %0" : : "m"(far[i]));
    }
  }
};

// Quads [j, j_end) of a group, m rows: a decoded quad meets all of them.
template <DType type, int m, int j, int j_end, class Asks>
KVILT_INLINE void add_quads(const Packed<type>& w, const std::byte* x, const Asks& asks, VI (&sums)[m]) {
  if constexpr (j < j_end) {
    asks.template before_quad<j>();
    const VI quad = Packed<type>::template quad<j>(w);
    KVILT_UNROLL
    for (int r = 0; r < m; ++r) sums[r] = add_quad<type>(sums[r], quad, x + (j * m + r) * 4);
    add_quads<type, m, j + 1, j_end>(w, x, asks, sums);
  }
}

// dots: of the quads of a group's scale s (all, or one half of them) with m rows.
template <DType type, int m, int s, class Asks>
KVILT_INLINE void dot_quads(const Packed<type>& w, const std::byte* x, const Asks& asks, VI (&dots)[m]) {
  constexpr int scales = Packed<type>::kFormat.scales, quads = 8 / scales;
  const std::byte* minus_sums = x + (scales == 1 ? 40 : 44 + 4 * s) * m;
  KVILT_UNROLL
  for (int r = 0; r < m; ++r) dots[r] = start<type>(minus_sums + r * 4);
  add_quads<type, m, s * quads, s * quads + (quads < kFits<type> ? quads : kFits<type>)>(w, x, asks, dots);
  KVILT_UNROLL
  for (int r = 0; r < m; ++r) dots[r] = total<type>(dots[r]);
  if constexpr (quads > kFits<type>) {
    static_assert(quads == 2 * kFits<type> && !kOffset<type>);
    VI more[m];
    KVILT_UNROLL
    for (int r = 0; r < m; ++r) more[r] = zero_i();
    add_quads<type, m, kFits<type>, quads>(w, x, asks, more);
    KVILT_UNROLL
    for (int r = 0; r < m; ++r) dots[r] = add_i(dots[r], total<type>(more[r]));
  }
}

template <DType type, int m, int s, class Asks>
KVILT_INLINE void add_scaled(const Packed<type>& w, const std::byte* x, const Asks& asks, VF (&part)[m]) {
  VI dots[m];
  dot_quads<type, m, s>(w, x, asks, dots);
  const VF scale = Packed<type>::scale(w, s);
  KVILT_UNROLL
  for (int r = 0; r < m; ++r) part[r] = fma(to_float(dots[r]), scale, part[r]);
}

// sums += m rows x kLanes columns over `groups` groups. Called for each segment of K: the sums pass through memory, which
// costs nothing compared with 28 groups and more.
template <DType type, int m, class Asks>
__attribute__((noinline)) void tile(Packed<type> w, const std::byte* x, int64_t groups, Ahead ahead, VF* sums) {
  using W = Packed<type>;
  constexpr Format f = W::kFormat;
  VF sum[m];
  KVILT_UNROLL
  for (int r = 0; r < m; ++r) sum[r] = sums[r];
  for (int64_t g = 0; g < groups;) {
    const std::byte* x_scales = x + 32 * m;
    const int64_t end = g + kShared < groups ? g + kShared : groups;
    VF part[m];
    KVILT_UNROLL
    for (int r = 0; r < m; ++r) part[r] = zero_f();
    for (; g < end; ++g, x += kRecordBytes * m, W::next(w)) {
      const Asks asks(ahead, g);
      add_scaled<type, m, 0>(w, x, asks, part);
      if constexpr (f.scales == 2) add_scaled<type, m, 1>(w, x, asks, part);
      if constexpr (f.mins) {
        const VF min = W::min(w);
        KVILT_UNROLL
        for (int r = 0; r < m; ++r) sum[r] = fma(min, set(load_float(x + (36 * m + r * 4))), sum[r]);
      }
    }
    KVILT_UNROLL
    for (int r = 0; r < m; ++r) sum[r] = fma(part[r], set(load_float(x_scales + r * 4)), sum[r]);
  }
  KVILT_UNROLL
  for (int r = 0; r < m; ++r) sums[r] = sum[r];
}

// Two halves of a block, one after the other, would ask for the same lines: those of 8 lanes ask once.
template <DType type, int m>
KVILT_INLINE void run_tile(Packed<type> w, const std::byte* x, int64_t groups, const Ahead& ahead, VF* sums) {
  if constexpr (m == 1 && kLanes == 16) {
    if (ahead.near != nullptr) return tile<type, m, AsksTwice<type>>(w, x, groups, ahead, sums);
  }
  tile<type, m, AsksOnce<type>>(w, x, groups, ahead, sums);
}

// Of a single row that reads from `at` on.
KVILT_INLINE Ahead ahead_of(const MatmulPart& part, const std::byte* at) {
  return {at + part.ahead.far, part.ahead.near > 0 ? at + part.ahead.near : nullptr};
}

constexpr int64_t kBlocksAtOnce = 32;  // row blocks whose sums wait together: 16 KB

struct TileAt {
  const MatmulPart* part;
  const std::byte* x;  // of the row block
  int64_t row, n;      // first row and column
  bool fetches;        // the next block of weights meanwhile
};

template <int m>
KVILT_INLINE void finish_rows(const TileAt& at, const VF* sum) {
  const int64_t left = at.part->N - at.n;
  KVILT_UNROLL
  for (int r = 0; r < m; ++r) {
    finish(sum[r], {at.part->y + (at.row + r) * at.part->y_stride + at.n,
                    at.part->bias == nullptr ? nullptr : at.part->bias + at.n,
                    static_cast<int>(left < kLanes ? left : kLanes), at.part->accumulate});
  }
}

// One vector of columns, m rows, the segment that begins at group g: sum holds what came before it.
template <DType type, int m>
void run_segment(const TileAt& at, int64_t g, VF* sum) {
  using W = Packed<type>;
  const MatmulPart& part = *at.part;
  const int64_t groups = part.K / kGroup, left = groups - g;
  Ahead ahead;
  if (m == 1 && part.ahead.far > 0) {
    ahead = ahead_of(part, W::at_row(part, at.n, g).chunk);
  } else if (at.fetches && at.n + kLanes < part.n_end) {
    ahead.far = W::at_row(part, at.n + kLanes, g).chunk;
  } else if (at.fetches && part.next != nullptr) {
    ahead.far = part.next + g / W::kChunk.groups * W::kChunk.bytes * (part.segment < groups ? kTogether : 1);
  }
  if (g == 0) {
    KVILT_UNROLL
    for (int r = 0; r < m; ++r) sum[r] = zero_f();
  }
  if (left <= part.segment) claim(part.y + at.row * part.y_stride + at.n, part.y_stride, m);
  run_tile<type, m>(W::at_row(part, at.n, g), at.x + g * kRecordBytes * m, left < part.segment ? left : part.segment,
                    ahead, sum);
  if (left <= part.segment) finish_rows<m>(at, sum);
}

// All columns of a part that is cut into segments, m rows: its weights in the order in which they are stored.
template <DType type, int m>
void run_together(const TileAt& whole) {
  using W = Packed<type>;
  constexpr int kVectors = 16 / kLanes;
  const MatmulPart& part = *whole.part;
  const int64_t groups = part.K / kGroup;
  for (int64_t n = part.n_begin; n < part.n_end; n += kTogether * 16) {
    const int64_t left = (part.n_end - n + 15) / 16, blocks = left < kTogether ? left : kTogether;
    VF sum[kTogether * kVectors][m];
    for (VF(&vector)[m] : sum) {
      KVILT_UNROLL
      for (int r = 0; r < m; ++r) vector[r] = zero_f();
    }
    const std::byte* at = part.w + n / 16 * part.block_bytes;
    for (int64_t g = 0; g < groups; g += part.segment) {
      const int64_t now = groups - g < part.segment ? groups - g : part.segment, bytes = W::segment_bytes(part, g);
      for (int64_t i = 0; i < blocks * kVectors; ++i) {
        const int lane = static_cast<int>(i % kVectors) * kLanes;
        Ahead ahead;
        if (lane + kLanes == 16 && (m > 1 || part.ahead.far > 0)) {
          ahead = m > 1 ? Ahead{at + bytes, nullptr} : ahead_of(part, at);
        }
        run_tile<type, m>(W::at(at, lane), whole.x + g * kRecordBytes * m, now, ahead, sum[i]);
        if (lane + kLanes == 16) at += bytes;
      }
    }
    for (int64_t i = 0; i < blocks * kVectors; ++i) {
      finish_rows<m>({&part, whole.x, whole.row, n + i * kLanes, false}, sum[i]);
    }
  }
}

// Calls body.template operator()<m>() for m = rows.
template <int m = kMaxRows, class Body>
KVILT_INLINE void with_rows(int64_t rows, const Body& body) {
  if constexpr (m > 0) {
    if (rows == m) return body.template operator()<m>();
    with_rows<m - 1>(rows, body);
  }
}

// Several row blocks. Long K goes segment by segment: 18 KB of weights stay in L1 while all rows pass, and the sums
// wait in memory (whole blocks of K = 4864 are 45 to 82 KB).
template <DType type>
void run_blocks(const MatmulPart& part, int64_t first, int64_t end, int64_t n) {
  const int64_t base = part.rows / part.blocks, more = part.rows % part.blocks;
  const int64_t row_bytes = part.K / kGroup * kRecordBytes;
  VF sums[kBlocksAtOnce][kMaxRows];
  for (int64_t g = 0; g < part.K / kGroup; g += part.segment) {
    for (int64_t b = first; b < end; ++b) {
      const int64_t row = b * base + (b < more ? b : more);
      // The last row block fetches the next block of weights: by then nothing is being read from memory, and nothing
      // would be until the row block after it. A single row reads in one line, which the hardware foresees or is told
      // (MatmulPart::ahead).
      const bool fetches = part.rows > 1 && n % 16 + kLanes == 16 && b + 1 == part.block_end;
      const TileAt at = {&part, part.x + row * row_bytes, row, n, fetches};
      with_rows(base + (b < more), [&]<int m>() { run_segment<type, m>(at, g, sums[b - first]); });
    }
  }
}

template <DType type>
void matmul(const MatmulPart& part) {
  if (part.blocks == 1 && part.segment * kGroup < part.K) {
    const TileAt all = {&part, part.x, 0, part.n_begin, false};
    return with_rows(part.rows, [&]<int m>() { run_together<type, m>(all); });
  }
  for (int64_t n = part.n_begin; n < part.n_end; n += kLanes) {
    for (int64_t b = part.block_begin; b < part.block_end; b += kBlocksAtOnce) {
      const int64_t end = b + kBlocksAtOnce < part.block_end ? b + kBlocksAtOnce : part.block_end;
      run_blocks<type>(part, b, end, n);
    }
  }
}

}  // namespace

namespace quantised {
#define KVILT_MATMUL(name, type) \
  void matmul_##name(const MatmulPart& part) { matmul<DType::type>(part); }
KVILT_MATMUL(q4_0, kQ4_0)
KVILT_MATMUL(q4_1, kQ4_1)
KVILT_MATMUL(q5_0, kQ5_0)
KVILT_MATMUL(q5_1, kQ5_1)
KVILT_MATMUL(q8_0, kQ8_0)
KVILT_MATMUL(q4_k, kQ4_K)
KVILT_MATMUL(q5_k, kQ5_K)
KVILT_MATMUL(q6_k, kQ6_K)
#undef KVILT_MATMUL
}  // namespace quantised

}  // namespace kvilt::KVILT_ISA
