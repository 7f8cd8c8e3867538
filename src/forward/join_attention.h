// forward/join_attention.h: attention of one row over some keys, joined with that over others: (5) of
// docs/math/attention_merge.md.
#pragma once

#include <algorithm>
#include <cmath>

namespace kvilt {

// out, lse: of one query head over some keys, E elements; they become those over both. The keys are disjoint, and a sink
// is in one of the two.
inline void join_attention(float* out, float& lse, const float* other, float other_lse, int E) {
  const float most = std::max(lse, other_lse);
  const float w = std::exp(lse - most), v = std::exp(other_lse - most), sum = w + v;
  for (int e = 0; e < E; ++e) out[e] = (w * out[e] + v * other[e]) / sum;
  lse = most + std::log(sum);
}

}  // namespace kvilt
