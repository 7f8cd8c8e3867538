// forward/key_masks.h: a plan's views as the masks that kernels take.
#pragma once

#include <algorithm>

#include "kernels/backend.h"
#include "model/config.h"
#include "plan/plan.h"

namespace kvilt {

// What the plan lets a KV head see of what the model's layer lets it see.
inline KeyMask mask_of(const Plan& plan, const ModelConfig& config, int layer, int head) {
  const View& view = plan.views[plan.head_view.empty() ? 0 : plan.head_view[layer * config.G + head]];
  KeyMask mask = KeyMask::of(view);
  if (view.dense_last_rows > 0) mask.dense_from = plan.prompt_len - view.dense_last_rows;
  const int window = config.window_at(layer);
  mask.reach = window < 0 ? -1 : window - 1;
  return mask;
}

// Whether the row at pos sees every key before it.
inline bool sees_all(const KeyMask& mask, int32_t pos) {
  return mask.reach < 0 && (mask.window < 0 || pos >= mask.dense_from);
}

// Keys that the row at pos sees, for the account of FLOPs.
inline double visible(const KeyMask& mask, int32_t pos) {
  const double reached = mask.reach < 0 ? pos + 1 : std::min(pos, mask.reach) + 1;
  if (mask.window < 0 || pos >= mask.dense_from) return reached;
  return std::min(reached, static_cast<double>(mask.sink) + mask.window + 1);
}

}  // namespace kvilt
