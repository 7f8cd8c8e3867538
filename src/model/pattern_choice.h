// model/pattern_choice.h: from profiles of patterns to a sparse map: each KV head takes what holds most of its attention
// at a cost that all heads have alike.
// Source:  MInference's search (arXiv:2407.02490), which compares the outputs' error at equal FLOPs in the kernel; here
//          it is the attention that is held, and FLOPs include the choice.
// Role:    the arithmetic of `kvilt profile sparse` (docs/design/sparse.md#a-pattern-for-each-head).
// Threads: pure; any thread.
// Not here: profiling (engine/sparse_profile.h), writing files and the report (apps/profile_sparse.cc).
#pragma once

#include <optional>
#include <vector>

#include "kvilt/sparse_profile.h"
#include "model/sparse_map.h"

namespace kvilt {

// The patterns to try on prompts of up to so many tokens: two sizes for each doubling.
std::vector<HeadPattern> candidate_patterns(int tokens);

// The mean of single prompts' profiles of the same patterns. REQUIRES: not empty.
SparseProfile mean_profile(const std::vector<SparseProfile>& all);

// Each head's pattern: of those that cost at most `share` of its dense attention, the one that holds most; if there is
// none, the cheapest. only: of this kind, which some pattern must be. The first on a tie.
SparseMap choose_sparse_map(const SparseProfile& profile, double share, std::optional<HeadPattern::Is> only = {});

// What the heads of a map, whose patterns are among the profile's, hold and cost there: means over their rows.
struct HeldAt {
  double held = 0, cost = 0;
};
HeldAt held_at(const SparseProfile& profile, const SparseMap& map);

}  // namespace kvilt
