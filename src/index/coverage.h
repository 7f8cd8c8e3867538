// index/coverage.h: which of the known, overlapping stretches of a prompt to place.
// Idea:    every seam between pieces costs quality, so a piece must pay for its seam: it is taken if it brings more
//          than half of `least` tokens that its neighbours do not. The best choice, covered tokens minus seams, is
//          found exactly by a dynamic program over the stretches in order; overlaps are then cut between the two that
//          share them.
// Threads: pure.
// Cost:    O(n log n) of the stretches.
#pragma once

#include <cstdint>
#include <vector>

namespace kvilt {

// prompt[begin, end) equals segment[offset, offset + end - begin).
struct Stretch {
  int32_t begin = 0, end = 0;
  uint32_t segment = 0;  // slot
  int32_t offset = 0;
  uint64_t rank = 0;                     // among equal ranges the smallest wins, then the smallest offset
  int32_t keep_begin = 0, keep_end = 0;  // a marked part inside: pays no seam, and is not cut; empty: none
  bool marked() const { return keep_begin < keep_end; }
};

// Disjoint stretches in order. Each keeps at least `least` tokens where the overlaps allow it, else more than half of
// them (marked ones: at least their mark).
std::vector<Stretch> choose_coverage(std::vector<Stretch> stretches, int32_t least);

}  // namespace kvilt
