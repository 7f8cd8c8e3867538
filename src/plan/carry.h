// plan/carry.h: the weights with which a group's untouched positions take over what changed at its recomputed ones.
// Source: METHODS 2.6, docs/math/carry.md; kContent is this project's own. Pure arithmetic in double; one matrix serves all
//         layers, heads, K and V.
// Cost:   4/3 n^3 + m n^2 for n recomputed and m other positions of a group; policies keep groups below about 512.
// Not here: reading the contents and adding the change (forward/carry.h).
#pragma once

#include <span>
#include <vector>

#include "plan/plan.h"

namespace kvilt {

struct CarryWeights {
  std::vector<int32_t> sources, targets;  // recomputed, and all other positions of the group
  std::vector<float> w;                   // targets x sources, row by row
  std::vector<float> left_out;  // sources x sources: each source as the others alone would have it; diagonal 0
};

// The group's sources and targets, not weighed yet; nothing at all if none or all of its positions are in `written`.
CarryWeights carry_positions(const CarryGroup& group, const Runs& written);

// Fills w and left_out. lambda = carry.noise, n sources; [p]: 1 if a and b stand in the same part, else 0:
//   kMean:     w(u, s) = 1 / (n + lambda): the mean, shrunk by n / (n + lambda)
//   kGaussian: w(u, .) = k(u, S) (k(S, S) + lambda I)^-1,  k(a, b) = [p] (1 + exp(-(a - b)^2 / (2 width^2))); a constant k of 1
//              gives kMean. left_out = I - diag(1 / H_ii) H with H = (k(S, S) + lambda I)^-1
//   kContent:  the same with k(a, b) = [p] (1 + exp(-(a - b)^2 / (2 width^2))) + (1 + [p]) exp(-d(a, b) / (2 content_width^2))
//   kNearest:  the mean of the 4 nearest sources, shrunk by n / (n + lambda)
// kMean and kNearest take groups of one part. distance: kContent's d, (sources, then targets) x sources; of the others empty.
void weigh(const Carry& carry, const CarryGroup& group, std::span<const float> distance, CarryWeights& out);

}  // namespace kvilt
