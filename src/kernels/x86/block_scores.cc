#include "kernels/x86/block_scores.h"

namespace kvilt::x86 {

const float* BlockScores::queries(const float* rotation) {
  const int64_t tile_floats = int64_t{rows_.count} * shape_.group * shape_.E;
  for (int t = 0; t < std::min(loaded_, kTurns); ++t) {
    if (turned_by_[t] == rotation) return tiles_ + t * tile_floats;
  }
  const int t = loaded_++ % kTurns;
  turned_by_[t] = rotation;
  isa_.load_queries(shape_, rows_.q, rows_.stride, rows_.count, rotation, tiles_ + t * tile_floats);
  return tiles_ + t * tile_floats;
}

void BlockScores::compute(const KeyBlock& block, uint64_t wanted, const void* const* ahead, float* s) {
  const int lines = rows_.count * shape_.group;
  isa_.gather_keys(shape_, block.k, kt_);
  for (int t = 0; t < block.turn_count; ++t) {
    const Turn& turn = block.turns[t];
    if ((turn.columns & wanted) == 0) continue;
    const uint64_t slots = block.permuted ? turn.slots : turn.slots & wanted;
    isa_.scores(shape_, queries(turn.rotation), lines, kt_, slots, ahead, s);
    ahead = nullptr;
  }
  if (block.permuted) isa_.permute(lines, block.slot, s);
}

}  // namespace kvilt::x86
