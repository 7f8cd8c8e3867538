#include "kernels/x86/block_scores.h"

namespace kvilt::x86 {

const float* BlockScores::queries(const float* rotation) {
  const int64_t tile_floats = int64_t{std::max(rows_.count * shape_.group, kDirectLines)} * shape_.E;
  for (int t = 0; t < std::min(loaded_, kTiles); ++t) {
    if (rotated_by_[t] == rotation) return tiles_ + t * tile_floats;
  }
  const int t = loaded_++ % kTiles;
  rotated_by_[t] = rotation;
  isa_.load_queries(shape_, rows_.q, rows_.stride, rows_.count, rotation, tiles_ + t * tile_floats);
  return tiles_ + t * tile_floats;
}

void BlockScores::compute(const KeyBlock& block, std::span<const RowPart> parts, Ahead ahead, float* s) {
  const bool direct = isa_.scores_direct != nullptr && rows_.count * shape_.group <= kDirectLines;
  uint64_t wanted = 0;
  for (const RowPart& part : parts) wanted |= part.wanted;
  if (!direct) isa_.gather_keys(shape_, block.k, block.permuted ? ~uint64_t{0} : wanted, kt_);
  for (int t = 0; t < block.rotation_count; ++t) {
    const RotationGroup& keys = block.rotations[t];
    if ((keys.columns & wanted) == 0) continue;
    const float* q = queries(keys.rotation);
    for (const RowPart& part : parts) {
      if ((keys.columns & part.wanted) == 0) continue;
      const uint64_t places = block.permuted ? keys.places : keys.places & part.wanted;
      const int line = part.first * shape_.group, lines = part.count * shape_.group;
      if (direct) {
        isa_.scores_direct(shape_, q, lines, {places, block.k, ahead}, s);
      } else {
        const float* queries = q + int64_t{line} * shape_.E * isa_.query_bytes / 4;
        isa_.scores(shape_, queries, lines, kt_, {places, ahead.v != nullptr ? ahead.v : ahead.k}, s + line * kBlock);
      }
      ahead = {};
    }
  }
  if (!block.permuted) return;
  for (const RowPart& part : parts) {
    isa_.permute(part.count * shape_.group, block.place, s + part.first * shape_.group * kBlock);
  }
}

}  // namespace kvilt::x86
