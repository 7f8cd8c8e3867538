// engine/explain.h: what was found of a prompt and what was computed, as Completion::quilt.
// Invariants: the patches are sorted and disjoint, and partition the prompt; neighbours differ in what they say.
// Threads:    pure.
// Cost:       linear in the runs.
// Not here:   finding (prepare.h), words for it (server/).
#pragma once

#include <vector>

#include "sched/sequence.h"

namespace kvilt {

// exact_end: what the request leaves as an exact prefix ends there. Fresh patches before it are `exact`.
std::vector<PromptPatch> quilt_of(const FoundNotes& notes, const PromptLayout& layout, const Runs& recomputed,
                                  int min_segment, int32_t exact_end);

}  // namespace kvilt
