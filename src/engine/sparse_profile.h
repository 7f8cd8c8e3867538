// engine/sparse_profile.h: profiles patterns of few keys in each KV head on one prompt (kvilt/sparse_profile.h).
// Method:  one dense pass, in which the rows of each layer attend once more for each pattern (forward/pattern_trials.h):
//          all rows, but for the last layer, where only the prompt's last row runs, as it does when a request is served.
//          So a head is tried on what it sees in the dense pass, whatever the heads below would take.
// Cost:    choice and attention of every pattern.
// Threads: the engine thread, between steps.
#pragma once

#include <span>

#include "engine/profiled_prompt.h"
#include "kvilt/result.h"
#include "kvilt/sparse_profile.h"

namespace kvilt {

// REQUIRES: profiled_pages() free pages, options that check_profile() lets pass.
SparseProfile profile_patterns(const ProfilerParts& parts, std::span<const int32_t> ids,
                               const SparseProfileOptions& options);

// Errors: kInvalidArgument naming what is wrong.
Status check_profile(std::span<const int32_t> ids, const SparseProfileOptions& options);

}  // namespace kvilt
