// model/head_choice.h: from profiles of a model's KV heads to a head map, and the controls that a map is compared with.
// Role:     the arithmetic of `kvilt profile heads` (docs/design/heads.md#profiling).
// Units:    of scores: those of the measure they were taken from (kvilt/head_profile.h).
// Not here: profiling (engine/head_profile.h), running the evaluation and writing files (apps/profile.cc).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "kvilt/head_profile.h"
#include "model/head_map.h"

namespace kvilt {

// A number for each KV head, layer * kv_heads + head; a head with a high one should stay global. by: "ablation",
// "edge-mean", "edge-max", "shift", or "paper" (the higher of edge-max and shift).
std::vector<double> head_scores(const HeadProfile& profile, std::string_view by);

// The mean of single prompts' profiles, and those windows that every prompt was long enough for. REQUIRES: not empty.
HeadProfile mean_profile(const std::vector<HeadProfile>& all);

// Mean rank correlation of the scores between pairs of prompts; 0 for one prompt.
double score_stability(const std::vector<HeadProfile>& all, std::string_view by);

// Spearman's rank correlation; ties share their mean rank. 0 where one list is constant.
double rank_correlation(const std::vector<double>& a, const std::vector<double>& b);

struct HeadChoice {
  double share = 0.25;  // of the heads that are global: those with the highest scores
  double loss = 0;      // if > 0, instead: as few as leave local heads whose scores sum to no more than this
  int window = 64, sink = 4;
  double window_mass = 0;  // if > 0: local heads have the shortest window tried that holds this share of attention
};
HeadMap choose_head_map(const HeadProfile& profile, const std::vector<double>& score, const HeadChoice& choice);

// `open` heads global, the others local with this window and sink. global: "first" and "last" (in the order of layers),
// "random" (seeded), "all" or "none".
struct HeadControl {
  std::string_view global;
  size_t open = 0;
  uint64_t seed = 0;
  int32_t window = HeadMap::kWindow, sink = HeadMap::kSink;
};
HeadMap control_head_map(int L, int G, const HeadControl& control);

// A control of `map`: as many global heads, and on the average as many keys in local ones.
HeadMap control_of(const HeadMap& map, std::string_view global, uint64_t seed = 0);

}  // namespace kvilt
