// engine/check_sampling.h: what is wrong with the settings by which an answer is drawn, and which tokens end one.
// Invariants: pure. Not here: ids beyond the vocabulary, and what a constraint excludes (engine.cc).
#pragma once

#include <cstdint>
#include <vector>

#include "kvilt/request.h"
#include "kvilt/result.h"

namespace kvilt {

// With which an answer ends: the request's own, and the model's (eos_ids) unless it ignores these.
std::vector<int32_t> ends_of(const SamplingParams& params, const std::vector<int32_t>& eos_ids);

// kInvalidArgument: out of range, or no answer can be as long as it must.
Status check_sampling(const SamplingParams& params, const std::vector<int32_t>& eos_ids);

}  // namespace kvilt
