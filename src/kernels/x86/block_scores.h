// kernels/x86/block_scores.h: the scores of a tile of rows against one block of keys that may need several rotations.
// Role:       shared by attend.cc and column_sums.cc.
// Idea:       the query is rotated back, not the key (docs/math/rope_shift.md). A few rotated copies of the query tile
//             are kept, so that blocks which alternate between rotations rotate nothing anew.
// Threads:    belongs to one worker, which between construction and destruction calls the functions of `isa` for tiles
//             of as many lines only (TileKernels::enter).
// Cost:       rotating a tile costs a row what 1/15 of a block of 64 keys does, once per piece of a prompt.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/x86/attend_tile.h"
#include "kernels/x86/key_blocks.h"

namespace kvilt::x86 {

// `count` rows of a task's queries.
struct QueryRows {
  const float* q;
  int64_t stride;
  int count;
};

// Rows [first, first + count) of such a tile, and the columns of a block that some of them see.
struct RowPart {
  int first, count;
  uint64_t wanted;
};

class BlockScores {
 public:
  static constexpr int kTiles = 4;  // query tiles kept, each for one rotation

  // Floats of memory that a tile of `lines` lines needs.
  static size_t floats(const TileShape& shape, int lines) {
    return size_t{kBlock} * shape.E + size_t{kTiles} * std::max(lines, kDirectLines) * shape.E;
  }

  BlockScores(const TileKernels& isa, const TileShape& shape, const QueryRows& rows, float* memory)
      : isa_(isa), shape_(shape), rows_(rows), kt_(memory), tiles_(memory + shape.E * kBlock) {
    if (isa.enter != nullptr) isa.enter(shape, rows.count * shape.group);
  }
  ~BlockScores() {
    if (isa_.leave != nullptr) isa_.leave();
  }
  BlockScores(const BlockScores&) = delete;
  BlockScores& operator=(const BlockScores&) = delete;

  // s (lines x 64) = scores of each part's rows in the columns that it wants; others become anything. Meanwhile the
  // first part fetches `ahead`; where keys are gathered, only the values of it, or the keys if it has no values.
  // REQUIRES: one part if the tile has at most kDirectLines lines.
  void compute(const KeyBlock& block, std::span<const RowPart> parts, Ahead ahead, float* s);

 private:
  const float* queries(const float* rotation);

  const TileKernels& isa_;
  const TileShape& shape_;
  const QueryRows rows_;
  float* const kt_;     // E x 64
  float* const tiles_;  // kTiles x lines x E
  const float* rotated_by_[kTiles];
  int loaded_ = 0;  // tiles loaded so far; the next one replaces the oldest
};

}  // namespace kvilt::x86
