// index/coverage.h: which of the overlapping candidates become the pieces of a prompt.
// Idea:    every seam between pieces costs quality, so a piece must pay for its seam: it is taken if it brings more
//          than half of `least` tokens that its neighbours do not. The best choice, covered tokens minus seams, is
//          found exactly by a dynamic program over the candidates in order; overlaps are then cut between the two that
//          share them. docs/design/finding.md#which-pieces-are-chosen.
// Threads: pure.
// Cost:    O(n log n) of the candidates.
#pragma once

#include <cstdint>
#include <vector>

namespace kvilt {

// What may become a piece: prompt[begin, end) equals tokens [offset, offset + end - begin) of the segment.
struct Candidate {
  int32_t begin = 0, end = 0;
  uint32_t segment = 0;  // slot of the SegmentTable
  int32_t offset = 0;
  uint64_t rank = 0;                     // among equal ranges the smallest wins, then the smallest offset
  int32_t keep_begin = 0, keep_end = 0;  // a marked part inside, which pays for no seam and is not cut; empty: none
  bool marked() const { return keep_begin < keep_end; }
};

// The chosen candidates in order, cut so that they are disjoint. Each keeps at least `least` tokens where the overlaps
// allow it, else more than half of that (marked ones: at least their mark).
std::vector<Candidate> choose_coverage(std::vector<Candidate> candidates, int32_t least);

}  // namespace kvilt
