// plan/carry.h: the weights with which a group's untouched positions take over what changed at its recomputed ones.
// Source: METHODS 2.6, docs/math/carry.md. Pure arithmetic in double; one matrix serves all layers, heads, K and V.
// Cost:   4/3 n^3 + m n^2 for n recomputed and m other positions of a group; policies keep groups below about 512.
#pragma once

#include <vector>

#include "plan/plan.h"

namespace kvilt {

struct CarryWeights {
  std::vector<int32_t> sources, targets;  // recomputed, and all other positions of the group
  std::vector<float> w;                   // targets x sources, row by row
  std::vector<float> left_out;  // sources x sources: each source as the others alone would have it; diagonal 0
};

// Of one group; empty if none or all of its positions are in `written`. lambda = carry.noise, n sources:
//   kMean:     w(u, s) = 1 / (n + lambda): the mean, shrunk by n / (n + lambda)
//   kGaussian: w(u, .) = k(u, S) (k(S, S) + lambda I)^-1,  k(a, b) = 1 + exp(-(a - b)^2 / (2 width^2)); a constant k of 1
//              gives kMean. left_out = I - diag(1 / H_ii) H with H = (k(S, S) + lambda I)^-1
//   kNearest:  the mean of the 4 nearest sources, shrunk by n / (n + lambda)
CarryWeights carry_weights(const Carry& carry, Run group, const Runs& written);

}  // namespace kvilt
