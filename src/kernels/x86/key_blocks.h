// kernels/x86/key_blocks.h: finds the keys of one block of 64 logical positions among a task's spans, and who sees
// them.
// Role:    the scalar half of attend.cc and column_sums.cc; what it hands out no longer knows about spans, so that
//          nothing computed from it can depend on how keys were cut into spans.
// Threads: a KeyBlocks belongs to one worker.
// Cost:    about 100 cycles a block when one span holds it; a block of arithmetic takes thousands.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/x86/attend_tile.h"

namespace kvilt::x86 {

static_assert(kBlock == kKeyBlock);

// What the tiles need to know of a shape. CHECKs the limits named in x86/attend.h.
TileShape tile_shape(const AttendShape& shape);

// The keys of a block that share a rotation.
struct RotationGroup {
  const float* rotation;
  uint64_t columns;
  uint64_t places;  // of these keys in the key tile
};

// Keys of several rotations that alternate (recomputed tokens within a placed piece) are laid out in the key tile one
// rotation after the other, so that each rotated query tile meets whole vectors; their scores are put back in order.
struct KeyBlock {
  uint64_t present = 0;    // columns that a span holds
  const void* k[kBlock];   // by place in the key tile; absent: zeros
  const void* v[kBlock];   // by column
  int8_t run_end[kBlock];  // of present columns: [j, run_end[j]) are one after the other in memory
  RotationGroup rotations[kBlock];
  int rotation_count = 0;
  bool permuted = false;  // false: place = column
  int32_t place[kBlock];  // of each column, if permuted
};

// Walks the blocks of a task in increasing order.
class KeyBlocks {
 public:
  KeyBlocks(const TileShape& shape, std::span<const KvSpan> spans) : shape_(shape), spans_(spans) {}

  // REQUIRES: block does not decrease between calls.
  void locate(int64_t block, KeyBlock& out);

 private:
  void arrange(KeyBlock& out) const;
  void seek(int64_t pos);  // next_ = the first span that ends after pos

  const TileShape& shape_;
  std::span<const KvSpan> spans_;
  size_t next_ = 0;
  bool started_ = false;
};

// Columns of `block` that a query at position i sees, whether or not there is a key.
uint64_t visible_columns(const KeyMask& mask, int64_t i, int64_t block);

// Blocks [first, last) that hold keys at positions <= high.
struct BlockRange {
  int64_t first = 0, last = 0;
};
BlockRange seen_blocks(std::span<const KvSpan> spans, int64_t high);

// The first block >= block that some row at a position in [low, high] may see, as far as sink and window say.
int64_t next_seen(const KeyMask& mask, int64_t low, int64_t high, int64_t block);

}  // namespace kvilt::x86
