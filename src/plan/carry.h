// plan/carry.h: what a stage carries over from recomputed positions to untouched ones, and with which weights.
// Source: docs/math/carry.md; kContent is this project's own. Pure arithmetic in double; one matrix serves all layers,
//         heads, K and V.
// Cost:   4/3 n^3 + m n^2 for n recomputed and m other positions of a group; policies keep groups below about 512.
// Not here: reading the contents and adding the change (forward/carry.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/runs.h"

namespace kvilt {

// Positions whose changes tell about each other. A chunk takes all rows of its range at once: keep ranges short.
struct CarryGroup {
  std::vector<Run> parts;  // pieces, or parts of them: sorted, disjoint, may touch; placed positions. Never empty
  Run range() const { return {parts.front().begin, parts.back().end}; }  // including the gaps between its parts
  Runs positions() const { return normalize(Runs(parts.begin(), parts.end())); }
};

// What placed tokens take over from the recomputed ones around them (docs/math/carry.md): a group's recomputed
// positions S show by how much K and V changed, and every other position u of the group gets sum_s w(u, s) change(s),
// in a private copy. K's change is taken and added before its rotation, so that it does not depend on the distance from
// s to u.
struct Carry {
  enum class Kernel : uint8_t { kMean, kGaussian, kNearest, kContent };  // weigh() below
  Kernel kernel = Kernel::kGaussian;
  float width = 8;                 // kGaussian, kContent: sigma, in tokens
  float content_width = 0.9f;      // kContent: sigma of the contents' distance, in units of their spread
  float noise = 0.5f;              // of one change: what is added to k(s, s)
  bool gain = true;                // scale by how well the recomputed positions predict each other (forward/carry.h)
  float scale_k = 1, scale_v = 1;  // of what is added
  // By position of the prompt, in [0, 1]: how much of it this position gets, besides. Empty: all of it.
  std::vector<float> share_k = {}, share_v = {};
  int layer_begin = 1;             // layer 0 needs no context: nothing changes there
  std::vector<CarryGroup> groups;  // their ranges are sorted and disjoint
};

struct CarryWeights {
  std::vector<int32_t> sources, targets;  // recomputed, and all other positions of the group
  std::vector<float> w;                   // targets x sources, row by row
  std::vector<float> left_out;            // sources x sources: each as only the others would have it; diagonal 0
};

// The group's sources and targets, not weighed yet; nothing at all if none or all of its positions are in `written`.
CarryWeights carry_positions(const CarryGroup& group, const Runs& written);

// Fills w and left_out. lambda = carry.noise, n sources; [p]: 1 if a and b are in the same part, else 0:
//   kMean:     w(u, s) = 1 / (n + lambda): the mean, shrunk by n / (n + lambda)
//   kGaussian: w(u, .) = k(u, S) (k(S, S) + lambda I)^-1,  k(a, b) = [p] (1 + exp(-(a - b)^2 / (2 width^2)));
//              a constant k of 1 gives kMean. left_out = I - diag(1 / H_ii) H with H = (k(S, S) + lambda I)^-1
//   kContent:  the same with k(a, b) = [p] (1 + exp(-(a - b)^2 / (2 width^2)))
//                                      + (1 + [p]) exp(-d(a, b) / (2 content_width^2))
//   kNearest:  the mean of the 4 nearest sources, shrunk by n / (n + lambda)
// kMean and kNearest take groups of one part. distance: kContent's d, (sources, then targets) x sources; empty for the
// others. Distances that are no numbers, or contradict each other, give the mean.
void weigh(const Carry& carry, const CarryGroup& group, std::span<const float> distance, CarryWeights& out);

}  // namespace kvilt
