// kernels/x86/attend_tile.h: what attention does with registers, as plain functions over PODs; one table per ISA.
// Role:       the seam between planning (attend.cc, column_sums.cc, rope.cc: no -m flags) and arithmetic
//             (attend_tile.cc and rotate_tile.cc: compiled once per ISA). This header has declarations only, so that
//             those share no inline code.
// Words:      a line is one (row, query head) pair; line = row * group + head within a tile of rows. A block is 64
//             logical positions; its columns are those positions, and a 64-bit mask has a bit per column.
// Invariants: every function computes a line, and a column of it, in an order that does not depend on its neighbours.
// Threads:    pure; scratch is the caller's.
#pragma once

#include <cstdint>

#include "kernels/x86/isa.h"

namespace kvilt::x86 {

inline constexpr int kBlock = 64;     // columns of a tile: kKeyBlock
inline constexpr int kLanes = 16;     // lane sums kept per line (the AVX2 build uses the first 8)
inline constexpr int kMaxHead = 512;  // E
inline constexpr int kDirectLines = 8;
// The running maximum before the first key: finite, so that differences are not NaN.
inline constexpr float kNoScore = -3e38f;

enum class Element : int32_t { kF32, kF16, kBF16, kI8 };  // rows as tensor/kv_row.h lays them out

struct TileShape {
  int32_t group = 1, E = 0;
  int32_t width = 0;   // E rounded up to 16: row length of V tiles and of accumulators; the rest is zero
  int32_t rotary = 0;  // R
  bool interleaved = false;
  float scale = 0;  // of the scores, times log2(e): softmax works in powers of two
  Element kv = Element::kF32;
  int32_t row_bytes = 0;  // of a stored key or value
};

// The online softmax of `lines` lines: maximum, lane sums of exp2(score - maximum), and the weighted values.
struct TileState {
  float* max;   // lines
  float* lane;  // lines x kLanes
  float* acc;   // lines x width
};

// What a product over a block computes, and what it fetches for the next one meanwhile.
struct WantedColumns {
  uint64_t mask;
  const void* const* ahead;  // 64 rows to fetch into the cache, or null
};

struct ValueTile {
  int32_t first, last;
  const float* data;
  int64_t stride;
  const void* const* ahead;  // as in WantedColumns
};

// The 64 keys and values to fetch into the cache meanwhile; null: none. Keys alone where values are not read.
struct Ahead {
  const void* const* k = nullptr;
  const void* const* v = nullptr;
};

// Keys and values where they are stored, and the next block's: scores_direct and add_values_direct of a block are told
// the same, and share fetching it between them.
struct DirectKeys {
  uint64_t wanted;          // columns
  const void* const* rows;  // of all 64 columns
  Ahead ahead;
};
struct DirectValues {
  int32_t first, last;  // columns
  const void* const* rows;
  Ahead ahead;
};

struct TileKernels {
  // out[line * E ..] = scale * the query, rotated back by `rotation` (null: as it is). Interleaved pairs come out as
  // halves, as gather_keys lays keys out: a dot product does not care, and one rotation loop serves both. out has room
  // for kDirectLines lines at least.
  void (*load_queries)(const TileShape&, const float* q, int64_t stride, int rows, const float* rotation, float* out);
  // kt (E x 64) = the 64 keys at `keys`, transposed; vectors without a column of `wanted` stay as they are.
  void (*gather_keys)(const TileShape&, const void* const* keys, uint64_t wanted, float* kt);
  // v (64 x width) = the values [first, last) of the 64 at `values`; the others stay as they are.
  void (*gather_values)(const TileShape&, const void* const* values, int first, int last, float* v);
  // s (lines x 64) = q . kt, in the wanted columns only.
  void (*scores)(const TileShape&, const float* q, int lines, const float* kt, WantedColumns wanted, float* s);
  // Column j of every line = what was in column place[j].
  void (*permute)(int lines, const int32_t* place, float* s);
  // s = exp2(s - new maximum), 0 in columns that are not in visible[row]; scale_back[line] = exp2(old - new maximum).
  // Updates max and lane. A row that sees nothing keeps its state bit for bit.
  void (*softmax)(const TileShape&, int rows, const uint64_t* visible, float* s, const TileState&, float* scale_back);
  // acc = acc * scale_back + sum over columns [first, last) of p * v; v.data is the value of column `first`.
  void (*add_values)(const TileShape&, int lines, const float* p, const ValueTile& v, const float* scale_back,
                     float* acc);
  // into = into (+) from, by log-sum-exp.
  void (*merge)(const TileShape&, int lines, const TileState& from, const TileState& into);
  // out = acc / sum of lanes, or zeros for a line that saw no key; lse (lines, or null): log-sum-exp in natural units.
  void (*finish)(const TileShape&, int rows, const TileState&, float* out, int64_t stride, float* lse);
  // columns[64] += sum over lines of exp2(s - lse * log2(e)) where visible.
  void (*add_columns)(const TileShape&, int rows, const uint64_t* visible, const float* s, const float* lse,
                      float* columns);
  // norms[64] = |v| of a gathered tile.
  void (*norms)(const TileShape&, const float* v, float* norms);
  // x: `heads` heads of E floats, rotated by `rotation` in place.
  void (*rope_row)(const TileShape&, float* x, int64_t heads, const float* rotation);
  // rotation (cos[n], sin[n]) = magnitude * cos, sin of pos * inv_freq[i], computed in double.
  void (*angles)(double pos, const double* inv_freq, int n, double magnitude, float* rotation);
  // scores() for at most kDirectLines lines, from the stored keys themselves and with the same bits; may be null.
  void (*scores_direct)(const TileShape&, const float* q, int lines, const DirectKeys& keys, float* s) = nullptr;
  // add_values() for at most kDirectLines lines, from the stored values themselves and with the same bits; may be null.
  void (*add_values_direct)(const TileShape&, int lines, const float* p, const DirectValues& v, const float* scale_back,
                            float* acc) = nullptr;
  // What a thread that computes tiles of `lines` lines calls before and after; may be null.
  void (*enter)(const TileShape&, int lines) = nullptr;
  void (*leave)() = nullptr;
  int32_t query_bytes = 4;  // of each of the E elements of a line that load_queries writes
};

}  // namespace kvilt::x86

#define KVILT_DECLARE(isa)                    \
  namespace kvilt::isa {                      \
  extern const x86::TileKernels kAttendTiles; \
  }
KVILT_EACH_ATTEND_ISA(KVILT_DECLARE)
#undef KVILT_DECLARE
