// policy/carry_groups.h: which placed tokens share the change that recomputed ones among them show (plan/carry.h).
// Threads:  pure.
// Not here: the weights (plan/carry.h).
#pragma once

#include <vector>

#include "plan/carry.h"

namespace kvilt {

// The most positions of a group: the cost of a kernel regression grows with the cube of that number, a chunk takes all
// rows of a group at once, and a piece of more than some hundred tokens gains nothing from being one group.
inline constexpr int32_t kMostCarried = 512;

// A group for each piece; longer pieces are cut into even groups. across: small pieces near each other make one group,
// and new text between them counts.
std::vector<CarryGroup> carry_groups(const std::vector<Run>& pieces, bool across);

}  // namespace kvilt
