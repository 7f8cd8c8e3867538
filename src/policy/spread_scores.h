// policy/spread_scores.h: scores of tokens that are means over contexts, by how much these differ there.
// Idea:    what a token left as it is costs is how much is read of it times how wrong it is. The first a look tells. The
//          second is known as well, where the token is a mean: what it is in another context differs from the mean as its
//          contexts do (docs/math/seasoning.md, equation 9).
// Source:  this project's own; what a choice that knows the change gains: docs/results/seasoning.md.
// Threads: pure; any thread.
#pragma once

#include <span>

#include "policy/policy.h"

namespace kvilt {

// Multiplies each score, by position, with a token's change to the power `power`; where nothing is known of it, with the
// mean of those that are known. Nothing is known of pieces whose contexts differ by less than kLeastChange of what those of
// the others do: what stood before them was the same each time. power 0: nothing changes.
inline constexpr double kLeastChange = 0.01;  // squared, a token; passages of one prompt have .3 to 3
void weigh_by_spread(const PromptLayout& layout, double power, std::span<double> score);

}  // namespace kvilt
