// index/clip_pieces.h: of pieces that were found anywhere in a prompt, what lies in the text where they may be used.
// Role:    where nothing is said about quality, only marked text may be reused (docs/server.md#consent); where a better
//          copy of a document is known, others are used around it only.
// Threads: pure.
// Cost:    linear in pieces, runs and marks.
#pragma once

#include <span>
#include <vector>

#include "base/runs.h"
#include "index/cached_segment.h"

namespace kvilt {

struct ClipRules {
  std::span<const Run> marks;  // sorted, disjoint
  int32_t from = 0;            // pieces begin here or later
  int32_t least = 0;
};

// The parts of `pieces` (sorted, disjoint) inside of `within` (normal). A part that was cut to fewer than `least` tokens
// is dropped, unless it holds all of a mark, or all of it that is not before `from`.
std::vector<Piece> clip_pieces(std::span<const Piece> pieces, std::span<const Run> within, const ClipRules& rules);

}  // namespace kvilt
