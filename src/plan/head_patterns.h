// plan/head_patterns.h: MInference's patterns of a KV head (kvilt/sparse_profile.h) as rules of a plan: one for all heads,
// or each head's own, from a map.
// Source:  MInference, arXiv:2407.02490 (docs/papers.md#sparse-prefill).
// Threads: pure; any thread.
// Not here: the choice of keys (plan/lines.h, plan/blocks.h), maps as files (model/sparse_map.h).
#pragma once

#include "kvilt/sparse_profile.h"
#include "model/sparse_map.h"
#include "plan/sparse_rule.h"

namespace kvilt {

inline constexpr int kLookingRows = 64;  // a block's last ones, which choose its lines

KeyPattern key_pattern(const HeadPattern& pattern);
SparseRule rule_of(const HeadPattern& pattern);
SparseRule rule_of(const SparseMap& map);

}  // namespace kvilt
