// plan/carry.h: the weights with which a group's untouched positions take over what changed at its recomputed ones.
// Source: METHODS 2.6, docs/math/carry.md. Pure arithmetic in double; one matrix serves all layers, heads, K and V.
// Cost:   n^3 / 3 + m n^2 for n recomputed and m other positions of a group; policies keep groups below about 512.
#pragma once

#include <vector>

#include "plan/plan.h"

namespace kvilt {

struct CarryWeights {
  std::vector<int32_t> sources, targets;  // recomputed, and all other positions of the group
  std::vector<float> w;                   // targets x sources, row by row
};

// Of one group; empty if none or all of its positions are in `written`.
//   kMean:     w(u, s) = 1 / (n + 1): the mean, shrunk by n / (n + 1)
//   kGaussian: w(u, .) = k(u, S) (k(S, S) + I)^-1,  k(a, b) = 1 + exp(-(a - b)^2 / (2 width^2)); a constant k gives kMean
//   kNearest:  the mean of the 4 nearest sources, shrunk by n / (n + 1)
CarryWeights carry_weights(const Carry& carry, Run group, const Runs& written);

}  // namespace kvilt
