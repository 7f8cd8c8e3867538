// policy/mend.h: mend for other policies (auto.cc), without a detour through strings.
#pragma once

#include <memory>

#include "policy/policy.h"

namespace kvilt {

inline constexpr int kMostAhead = 64;

// mend that recomputes the share r of the reused tokens, whose look takes `ahead` guessed tokens of the answer in, with
// defaults for the rest. REQUIRES: r in [0, 1], ahead in [0, kMostAhead].
std::unique_ptr<ReusePolicy> mend_with(double r, int ahead);

}  // namespace kvilt
