#include "kernels/x86/block_scores.h"

namespace kvilt::x86 {

const float* BlockScores::queries(const float* rotation) {
  const int64_t tile_floats = int64_t{std::max(rows_.count * shape_.group, kDirectLines)} * shape_.E;
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
  const bool direct = isa_.scores_direct != nullptr && lines <= kDirectLines;
  if (!direct) isa_.gather_keys(shape_, block.k, kt_);
  for (int t = 0; t < block.turn_count; ++t) {
    const Turn& turn = block.turns[t];
    if ((turn.columns & wanted) == 0) continue;
    const uint64_t slots = block.permuted ? turn.slots : turn.slots & wanted;
    if (direct) {
      isa_.scores_direct(shape_, queries(turn.rotation), lines, block.k, slots, ahead, s);
    } else {
      isa_.scores(shape_, queries(turn.rotation), lines, kt_, slots, ahead, s);
    }
    ahead = nullptr;
  }
  if (block.permuted) isa_.permute(lines, block.slot, s);
}

}  // namespace kvilt::x86
