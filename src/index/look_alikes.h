// index/look_alikes.h: is a text made of look-alikes? Rows of a staff list, invoices and logs say nearly the same but for
// a name and a number; which of them is meant shows in a few tokens only.
// Source: this project's own; docs/papers.md#auto-ours, docs/results/look-alikes.md.
// Threads: pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/runs.h"

namespace kvilt {

// Any text repeats itself the more the longer it is: shares are taken within so many tokens.
inline constexpr int64_t kLookAlikeStretch = 2048;

// Of the tokens that stand behind three others of their part: the share whose three go on with another token elsewhere
// in the same stretch of the parts. 0 for a text without repetition, and for one that repeats itself to the letter.
struct LookAlikes {
  double all = 0;
  // Of each part's tokens: one table among other texts shows here and hardly in the share of all. "Elsewhere" is in any
  // part: a table's rows resemble those of its other parts, and of a small part alone there are too few to tell.
  std::vector<double> parts;
};

// Cost: a sort of each stretch.
LookAlikes look_alikes(std::span<const int32_t> prompt, std::span<const Run> parts);

}  // namespace kvilt
