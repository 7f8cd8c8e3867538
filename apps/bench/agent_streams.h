// apps/bench/agent_streams.h: the prompt streams of agents and their like that are worst for prefix caches, as generated
// tokens: what changes, where, and how many tokens stand around it are those of public reports
// (each stream names one). The text itself is random: it decides what is found, and no answer is judged.
#pragma once

#include <vector>

#include "apps/bench/workload.h"

namespace kvilt {

// Eight streams, the first requests of each: clock, tools, compaction, pruning, subagents, rag, side, completion. scale: of the reported lengths; pieces become fewer before they become
// short. What clients mark (cache_control, documents) is marked.
std::vector<Workload> agent_streams(const Texts& texts, double scale, uint64_t seed);

}  // namespace kvilt
