// kernels/x86/attend_amx_tile.cc: attention over bf16 and int8 rows in AMX's tiles (tdpbf16ps).
// Idea:       a product of tiles is 16 lines x 16 columns over 32 bf16 in 16 cycles, where fp32 FMAs take 256. What is
//             rounded is what vdpbf16ps rounds (attend_bf16.h): queries and weights, to 2^-9.
// Layouts:    query tile: lines x E/2 words, in the order of stored elements; with at most kDirectLines lines over kBF16
//             their transpose too, from float 4 E on: E/2 x 8 words. Key tile: E/2 x 64 words, then 64 scales. Value
//             tile: as attend_bf16.h's; pairs of a step of 32 columns that are not wanted are zeros.
// Few lines:  a decode step's keys are read where they are, as the left operand; the scores come out transposed. Values
//             become pairs by the way. So a block costs less than its bytes take to arrive, and the next one's rows are
//             asked for a few at a time all along it (NextBlock).
// Invariants: a line's score is one sum over its elements in order, whichever side the keys are on; its values are
//             added in steps of 32 columns, and a step without a weight changes nothing. (The tiles' unit counts numbers
//             below 2^-126 as 0. Sums have none: scaled ones pass through the unit at once.)
// Cost:       for a block of 64 keys, 128 lines and E = 64: 128 products (2,048 cycles), 512 shuffles for K, and the
//             softmax, which takes twice as long as both.
#include "kernels/x86/amx_tiles.h"
#include "kernels/x86/attend_bf16_simd.h"

namespace kvilt::KVILT_ISA {
namespace {

using x86::Ahead;
using x86::DirectKeys;
using x86::DirectValues;
using x86::kDirectLines;
using x86::ValueTile;
using x86::WantedColumns;

constexpr int kSide = 16;              // lines, and columns, of a tile of sums
constexpr int kStep = 32;              // bf16 a product sums over
constexpr int64_t kLine = 4 * kBlock;  // bytes of a line of scores or weights, of a row of the key tile
constexpr uint64_t kSideMask = (uint64_t{1} << kSide) - 1;

bool is_direct(const TileShape& shape, int lines) { return shape.kv == Element::kBF16 && lines <= kDirectLines; }

// Many lines: tmm0 to 3 are sums (two tiles of lines x two of columns), 4 and 5 lines, 6 and 7 columns. Few: tmm0 and 1
// are scores (keys x 8 lines), 2 keys, 3 queries; 4 and 5 sums of values (lines x 16), 6 weights, 7 values.
void enter(const TileShape& shape, int lines) {
  TileConfig config;
  for (int reg = 0; reg < 8; ++reg) config.set(reg, kSide, 64);
  if (is_direct(shape, lines)) {
    config.set(0, kSide, 4 * kDirectLines);
    config.set(1, kSide, 4 * kDirectLines);
    config.set(3, kSide, 4 * kDirectLines);
    for (int reg = 4; reg < 7; ++reg) config.set(reg, lines, 64);
  }
  configure(config);
}

void leave() { release(); }

// ---- Layouts --------------------------------------------------------------------------------------------------------

void load_queries(const TileShape& shape, const float* q, int64_t stride, int rows, const float* rotation, float* out) {
  const int lines = rows * shape.group, words = shape.E / 2;
  auto* pairs = reinterpret_cast<int32_t*>(out);
  for (int line = 0; line < lines; ++line) {
    const float* query = q + line / shape.group * stride + line % shape.group * shape.E;
    round_query(shape, query, rotation, pairs + line * words);
  }
  if (!is_direct(shape, lines)) return;
  int32_t* columns = pairs + 4 * shape.E;
  for (int k = 0; k < words; ++k) {
    for (int l = 0; l < kDirectLines; ++l) *columns++ = l < lines ? pairs[l * words + k] : 0;
  }
}

template <Element kType>
void gather_keys_of(const TileShape& shape, const void* const* keys, uint64_t wanted, float* kt) {
  for (int j = 0; j < kBlock; j += kVec) {
    if ((wanted >> j & kVecColumns) == 0) continue;
    for (int e = 0; e < shape.E; e += kStep) {
      Vec r[kVec];
      KVILT_UNROLL
      for (int i = 0; i < kVec; ++i) r[i] = _mm512_castsi512_ps(load_pairs<kType>(keys[j + i], e));
      transpose(r);
      KVILT_UNROLL
      for (int i = 0; i < kVec; ++i) store(kt + (e / 2 + i) * kBlock + j, r[i]);
    }
  }
  if (kType == Element::kI8) gather_scales(shape, keys, kt + shape.E / 2 * kBlock);
}

void gather_keys(const TileShape& shape, const void* const* keys, uint64_t wanted, float* kt) {
  if (shape.kv == Element::kI8) return gather_keys_of<Element::kI8>(shape, keys, wanted, kt);
  gather_keys_of<Element::kBF16>(shape, keys, wanted, kt);
}

void zero_pairs(const TileShape& shape, int first, int last, float* v) {
  for (float* at = v + first * shape.width; at < v + last * shape.width; at += kVec) store(at, zero());
}

void gather_wanted_values(const TileShape& shape, const void* const* values, int first, int last, float* v) {
  gather_values(shape, values, first, last, v);
  zero_pairs(shape, first / kStep * kSide, first / 2, v);
  zero_pairs(shape, (last + 1) / 2, (last + kStep - 1) / kStep * kSide, v);
}

// ---- Products of many lines -----------------------------------------------------------------------------------------

// `steps` steps of two matrices of bf16: lines, and columns (rows of pairs); a step is 64 bytes of the lines.
struct Operands {
  const char *a, *b;
  int64_t a_stride, b_stride;
  int steps;
};

// The sums += a . b, for kTall tiles of lines x kWide of columns.
template <int kTall, int kWide>
KVILT_INLINE void add_product(const Operands& p) {
  const char *a = p.a, *b = p.b;
  for (int step = 0; step < p.steps; ++step, a += 64, b += kSide * p.b_stride) {
    add_bf16_step<kTall, kWide>({{a, a + kSide * p.a_stride}, {b, b + 64}, p.a_stride, p.b_stride});
  }
}

template <int kTall, int kWide>
KVILT_INLINE void clear_sums() {
  zero_tile<0>();
  if constexpr (kWide == 2) zero_tile<1>();
  if constexpr (kTall == 2) zero_tile<2>();
  if constexpr (kTall == 2 && kWide == 2) zero_tile<3>();
}

// Several rows line by line in turns.
template <class... Row>
KVILT_INLINE void fetch_rows(int row_bytes, const Row*... rows) {
  const auto line = [&](int at) __attribute__((always_inline)) {
    (_mm_prefetch(reinterpret_cast<const char*>(rows) + at, _MM_HINT_T1), ...);
  };
  line(0);  // two lines without a loop: 2 % of a decode step's attention
  line(64);
  for (int at = 128; at < row_bytes; at += 64) line(at);
}

// Fetches some of 64 rows at each call: all at once would wait.
struct RowsAhead {
  const void* const* rows;
  int row_bytes, each, next;
};
KVILT_INLINE void fetch(RowsAhead& ahead) {
  if (ahead.rows == nullptr) return;
  for (const int end = ahead.next + ahead.each; ahead.next < end && ahead.next < kBlock; ++ahead.next)
    fetch_rows(ahead.row_bytes, ahead.rows[ahead.next]);
}
RowsAhead in_parts(const TileShape& shape, const void* const* rows, int parts) {
  return {rows, shape.row_bytes, (kBlock + parts - 1) / parts, 0};
}

// Where a tile of scores goes: `lines` lines, the columns of `mask`, times `scales` unless null.
struct ScoresOut {
  float* s;
  int lines;
  uint64_t mask;
  const float* scales;
};

template <int reg>
KVILT_INLINE void store_scores(const ScoresOut& to) {
  const auto mask = static_cast<LaneMask>(to.mask);
  if (to.lines >= kSide && to.mask == kSideMask && to.scales == nullptr) return store_tile<reg>(to.s, kLine);
  alignas(64) float tile[kSide][kSide];
  store_tile<reg>(tile, 64);
  const Vec scales = to.scales == nullptr ? set1(1) : load(to.scales);
  for (int l = 0; l < to.lines && l < kSide; ++l) store_lanes(to.s + l * kBlock, mask, mul(load(tile[l]), scales));
}

// 32 lines, or what is left of them, in one or two tiles of columns.
template <int kTall, int kWide>
void scores_of(const Operands& p, const ScoresOut& to) {
  clear_sums<kTall, kWide>();
  add_product<kTall, kWide>(p);
  const auto part = [&](int tall, int wide) {
    return ScoresOut{to.s + tall * kSide * kBlock + wide * kSide, to.lines - tall * kSide,
                     to.mask >> (wide * kSide) & kSideMask, to.scales == nullptr ? nullptr : to.scales + wide * kSide};
  };
  store_scores<0>(part(0, 0));
  if constexpr (kWide == 2) store_scores<1>(part(0, 1));
  if constexpr (kTall == 2) store_scores<2>(part(1, 0));
  if constexpr (kTall == 2 && kWide == 2) store_scores<3>(part(1, 1));
}

void scores(const TileShape& shape, const float* q, int lines, const float* kt, WantedColumns wanted, float* s) {
  constexpr int kWides = kBlock / (2 * kSide);
  RowsAhead ahead = in_parts(shape, wanted.ahead, (lines + 2 * kSide - 1) / (2 * kSide) * kWides);
  for (int line = 0; line < lines; line += 2 * kSide) {
    const bool tall = lines - line > kSide;
    for (int n = 0; n < kBlock;) {
      fetch(ahead);
      const uint64_t mask = wanted.mask >> n;
      if ((mask & kSideMask) == 0) {
        n += kSide;
        continue;
      }
      const bool wide = n + kSide < kBlock && (mask >> kSide & kSideMask) != 0;
      const Operands p{reinterpret_cast<const char*>(q) + int64_t{line} * 2 * shape.E,
                       reinterpret_cast<const char*>(kt + n), 2 * shape.E, kLine, shape.E / kStep};
      const float* scales = shape.kv == Element::kI8 ? kt + shape.E / 2 * kBlock + n : nullptr;
      const ScoresOut to{s + line * kBlock + n, lines - line, mask, scales};
      (tall ? wide ? scores_of<2, 2> : scores_of<2, 1> : wide ? scores_of<1, 2> : scores_of<1, 1>)(p, to);
      n += wide ? 2 * kSide : kSide;
    }
  }
}

// acc *= scale_back, where that is not 1.
KVILT_INLINE void scale_sums(const TileShape& shape, int lines, const float* scale_back, float* acc) {
  for (int line = 0; line < lines; ++line, acc += shape.width) {
    if (scale_back[line] == 1) continue;
    for (int e = 0; e < shape.width; e += kVec) store(acc + e, mul(load(acc + e), set1(scale_back[line])));
  }
}

// Of 16 lines, or 32, and 32 elements.
template <int kTall>
void values_of(const Operands& p, float* acc, int64_t width) {
  load_tile<0>(acc, 4 * width);
  load_tile<1>(acc + kSide, 4 * width);
  if constexpr (kTall == 2) {
    load_tile<2>(acc + kSide * width, 4 * width);
    load_tile<3>(acc + kSide * width + kSide, 4 * width);
  }
  add_product<kTall, 2>(p);
  store_tile<0>(acc, 4 * width);
  store_tile<1>(acc + kSide, 4 * width);
  if constexpr (kTall == 2) {
    store_tile<2>(acc + kSide * width, 4 * width);
    store_tile<3>(acc + kSide * width + kSide, 4 * width);
  }
}

// As values_of<1> for the last, fewer than 16 lines: the sums behind them are not theirs.
void values_of_last(const Operands& p, int lines, float* acc, int64_t width) {
  alignas(64) float sums[kSide][2 * kSide];
  for (int l = 0; l < lines; ++l) {
    for (int e = 0; e < 2 * kSide; e += kVec) store(sums[l] + e, load(acc + l * width + e));
  }
  for (int l = lines; l < kSide; ++l) {
    for (int e = 0; e < 2 * kSide; e += kVec) store(sums[l] + e, zero());
  }
  values_of<1>(p, sums[0], 2 * kSide);
  for (int l = 0; l < lines; ++l) {
    for (int e = 0; e < 2 * kSide; e += kVec) store(acc + l * width + e, load(sums[l] + e));
  }
}

void add_values(const TileShape& shape, int lines, const float* p, const ValueTile& v, const float* scale_back,
                float* acc) {
  const int first = v.first / kStep, steps = (v.last + kStep - 1) / kStep - first;
  const int64_t width = shape.width;
  const float* tile = v.data - v.first * v.stride;
  if (shape.kv == Element::kI8) scale_weights(lines, p, tile + kPairs * width);
  scale_sums(shape, lines, scale_back, acc);
  RowsAhead ahead = in_parts(shape, v.ahead, (lines + 2 * kSide - 1) / (2 * kSide));
  for (int line = 0; line < lines;) {
    if (line % (2 * kSide) == 0) fetch(ahead);
    const int left = lines - line;
    for (int e = 0; e < width; e += 2 * kSide) {
      const Operands o{reinterpret_cast<const char*>(p + line * kBlock) + first * 64,
                       reinterpret_cast<const char*>(tile + first * kSide * width + e), kLine, 4 * width, steps};
      float* sums = acc + line * width + e;
      if (left >= 2 * kSide) {
        values_of<2>(o, sums, width);
      } else if (left >= kSide) {
        values_of<1>(o, sums, width);
      } else {
        values_of_last(o, left, sums, width);
      }
    }
    line += left >= 2 * kSide ? 2 * kSide : kSide;
  }
}

// ---- Few lines: keys and values are read in place -------------------------------------------------------------------

// Swaps the bit of a vector's number that tells a from b with bit `bit` of the lanes.
KVILT_INLINE void swap_bits(int bit, Vec& a, Vec& b) {
  alignas(64) int32_t low[kVec], high[kVec];
  for (int i = 0; i < kVec; ++i) {
    const int from_b = (i >> bit & 1) * kVec, lane = i & ~(1 << bit);
    low[i] = from_b | lane;
    high[i] = from_b | lane | 1 << bit;
  }
  const Vec x = a;
  a = _mm512_permutex2var_ps(x, _mm512_load_si512(low), b);
  b = _mm512_permutex2var_ps(x, _mm512_load_si512(high), b);
}

// r[i]: the scores of keys 2i and 2i + 1 for eight lines each; then r[l]: line l's of 16 keys. Lanes are numbered (key
// bit 0, line bits 2 1 0) and become (key bits 3 2 1 0) one bit after the other.
KVILT_INLINE void transpose_scores(Vec (&r)[kDirectLines]) {
  KVILT_UNROLL
  for (int i = 0; i < 4; ++i) swap_bits(2, r[i], r[i + 4]);
  KVILT_UNROLL
  for (int i = 0; i < 8; i += i % 4 == 1 ? 3 : 1) swap_bits(1, r[i], r[i + 2]);
  KVILT_UNROLL
  for (int i = 0; i < 8; i += 2) swap_bits(0, r[i], r[i + 1]);
  // Lanes are (key bits 0 3 2 1) now.
  const __m512i in_order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  KVILT_UNROLL
  for (int l = 0; l < kDirectLines; ++l) r[l] = _mm512_permutexvar_ps(in_order, r[l]);
}

// 16 keys are one after the other in memory.
KVILT_INLINE bool in_a_row(const void* const* keys, int64_t row_bytes) {
  const __m512i row = _mm512_set1_epi64(row_bytes), base = _mm512_set1_epi64(reinterpret_cast<int64_t>(keys[0]));
  const __m512i first = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7),
                later = _mm512_add_epi64(first, _mm512_set1_epi64(8));
  const auto differs = [&](const void* const* at, __m512i index) {
    return _mm512_cmpneq_epi64_mask(_mm512_loadu_si512(at), _mm512_add_epi64(base, _mm512_mullo_epi64(index, row)));
  };
  return (differs(keys, first) | differs(keys + 8, later)) == 0;
}

// The scores of 16 keys, in tmm0 or 1.
template <int reg>
KVILT_INLINE void score_keys(const TileShape& shape, const float* columns, const void* const* keys) {
  constexpr int64_t kColumnRow = 4 * kDirectLines;
  const auto* query = reinterpret_cast<const char*>(columns);
  const bool together = in_a_row(keys, shape.row_bytes);
  alignas(64) uint16_t copy[kSide][kStep];
  zero_tile<reg>();
  for (int e = 0; e < shape.E; e += kStep, query += kSide * kColumnRow) {
    load_tile<3>(query, kColumnRow);
    if (together) {
      load_tile<2>(static_cast<const uint16_t*>(keys[0]) + e, shape.row_bytes);
    } else {
      for (int i = 0; i < kSide; ++i) _mm512_store_si512(copy[i], load_pairs<Element::kBF16>(keys[i], e));
      load_tile<2>(copy, 64);
    }
    add_bf16_product<reg, 2, 3>();
  }
}

// The scores in tmm0 or 1 to columns [0, 16) of s.
template <int reg>
KVILT_INLINE void store_direct(int lines, LaneMask mask, float* s) {
  alignas(64) float tile[kDirectLines * kVec];
  store_tile<reg>(tile, 4 * kDirectLines);
  Vec r[kDirectLines];
  KVILT_UNROLL
  for (int i = 0; i < kDirectLines; ++i) r[i] = load(tile + i * kVec);
  transpose_scores(r);
  KVILT_UNROLL
  for (int l = 0; l < kDirectLines; ++l) {
    if (l < lines) store_lanes(s + l * kBlock, mask, r[l]);
  }
}

// The next block's rows, fetched while this one is computed. A core has 16 lines on their way at once; one comes in 12
// cycles, so a block's 256 take longer than its arithmetic. Whoever asks for many at a time waits for them, and where
// nobody asks nothing comes: as much of the block as its arithmetic takes there is asked for everywhere. Keys and values
// side by side, of both halves of the block in turns, are four streams, which arrive sooner than one after the other.
// 16,128 keys of 24 layers and two cores, a Xeon with 480 MB of L3 and busy neighbours: 9.4 ms; of one half after the
// other 9.9; of four quarters 10.3. In a quiet hour, of one half after the other: 9.4; all but 16 lines during the
// values' sums 10.3; nothing 17.5; a plain read 6.9.
class NextBlock {
 public:
  NextBlock(const TileShape& shape, Ahead rows, int next) : rows_(rows), row_bytes_(shape.row_bytes), next_(next) {}

  // So many more keys, and values where there are any.
  __attribute__((always_inline)) void fetch(int count) {  // 4 % of it
    if (rows_.k == nullptr) return;
    for (const int end = count < kBlock - next_ ? next_ + count : kBlock; next_ < end; ++next_) {
      const int row = next_ / 2 + next_ % 2 * (kBlock / 2);
      if (rows_.v != nullptr) {
        fetch_rows(row_bytes_, rows_.k[row], rows_.v[row]);
      } else {
        fetch_rows(row_bytes_, rows_.k[row]);
      }
    }
  }

 private:
  const Ahead rows_;
  const int row_bytes_;
  int next_;
};
// Rows, for E = 64; of larger ones the values' steps ask for all of the rest, of smaller ones the last step does.
constexpr int kScoreSteps = 8;
constexpr int kAheadOfTile = 2;     // before each of them
constexpr int kAheadOfSoftmax = 6;  // behind them
constexpr int kAheadOfScores = kScoreSteps * kAheadOfTile + kAheadOfSoftmax;
constexpr int kAheadOfValues = 1;  // before each 4 values

void scores_direct(const TileShape& shape, const float* q, int lines, const DirectKeys& keys, float* s) {
  const float* columns = q + 4 * shape.E;
  NextBlock next(shape, keys.ahead, 0);
  const int each =
      keys.ahead.v != nullptr ? kAheadOfTile : kBlock / kScoreSteps;  // keys alone: no values' sums ask for the rest
  for (int j = 0; j < kBlock; j += 2 * kSide) {
    const LaneMask first = lanes(keys.wanted >> j, 0), second = lanes(keys.wanted >> j, 1);
    next.fetch(each);
    if (first != 0) score_keys<0>(shape, columns, keys.rows + j);
    next.fetch(each);
    if (second != 0) score_keys<1>(shape, columns, keys.rows + j + kSide);
    next.fetch(each);
    if (first != 0) store_direct<0>(lines, first, s + j);
    next.fetch(each);
    if (second != 0) store_direct<1>(lines, second, s + j + kSide);
  }
  next.fetch(kAheadOfSoftmax);
}

void add_values_direct(const TileShape& shape, int lines, const float* p, const DirectValues& v,
                       const float* scale_back, float* acc) {
  constexpr int kBetween = 4;  // values between two fetches
  const ValuePairs order = ValuePairs::order();
  const int first = v.first / kStep * kStep;
  const int64_t width = shape.width;
  scale_sums(shape, lines, scale_back, acc);
  NextBlock next(shape, v.ahead, kAheadOfScores);
  for (int e = 0; e < shape.E; e += kStep) {
    alignas(64) int32_t pairs[kPairs][kStep];  // of 32 elements: the first 16, the last 16
    for (int j = first; j < v.last; j += 2) {
      if (j % kBetween == 0) next.fetch(kAheadOfValues);
      __m512i a = _mm512_setzero_si512(), b = a;
      if (j + 1 >= v.first) {
        a = load_pairs<Element::kBF16>(v.rows[j], e);
        b = load_pairs<Element::kBF16>(v.rows[j + 1], e);
      }
      const auto words = ValuePairs::of(a, b, order);
      _mm512_store_si512(pairs[j / 2], words.low);
      _mm512_store_si512(pairs[j / 2] + kVec, words.high);
    }
    for (int j = (v.last + 1) / 2 * 2; j % kStep != 0; j += 2) {
      _mm512_store_si512(pairs[j / 2], _mm512_setzero_si512());
      _mm512_store_si512(pairs[j / 2] + kVec, _mm512_setzero_si512());
    }
    load_tile<4>(acc + e, 4 * width);
    load_tile<5>(acc + e + kSide, 4 * width);
    for (int j = first; j < v.last; j += kStep) {
      load_tile<6>(p + j / 2, kLine);
      load_tile<7>(pairs[j / 2], 4 * kStep);
      add_bf16_product<4, 6, 7>();
      load_tile<7>(pairs[j / 2] + kVec, 4 * kStep);
      add_bf16_product<5, 6, 7>();
    }
    store_tile<4>(acc + e, 4 * width);
    store_tile<5>(acc + e + kSide, 4 * width);
  }
  next.fetch(kBlock);
}

}  // namespace

namespace peak {

// As peak.cc's, of products of registers.
double bf16_dots(int64_t rounds, int* sink) {
  constexpr int kEach = 12;  // of the operations that other peaks time in a round
  enter({.kv = Element::kI8}, kSide);
  for (int64_t n = 0; n < rounds / kEach; ++n) {
    add_bf16_product<0, 4, 6>();
    add_bf16_product<1, 5, 7>();
    add_bf16_product<2, 4, 7>();
    add_bf16_product<3, 5, 6>();
  }
  alignas(64) float sums[kSide * kSide];
  store_tile<3>(sums, 64);
  leave();
  *sink += static_cast<int>(sums[0]);
  return static_cast<double>(rounds / kEach) * 4 * 2 * kSide * kSide * kStep;
}

}  // namespace peak

extern const x86::Bf16Tiles kBf16Tiles = {load_queries,      gather_keys, gather_wanted_values, scores, scores_direct,
                                          add_values_direct, softmax,     add_values,           enter,  leave};

}  // namespace kvilt::KVILT_ISA
