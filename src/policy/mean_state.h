// policy/mean_state.h: the hidden state that is kept with a mean over contexts (docs/math/seasoning.md#states), so that
// rows of its tokens can enter above layer 0 (plan/plan.h, RowEntry).
// Why there: a third up. Entered at a quarter there is less to save; at half the KL is 1.1 to 1.3 times as high for the same
//            work (docs/results/seasoning.md#at-22-of-the-flops).
// Not here:  who computes it (a request with Request::season), and who enters with it (mend.cc).
#pragma once

#include <optional>

#include "base/annex_kind.h"
#include "model/config.h"

namespace kvilt {

// None of a model with less than three layers.
inline std::optional<AnnexKind> mean_state(const ModelConfig& config) {
  if (config.L < 3) return std::nullopt;
  return AnnexKind{AnnexOf::kHiddenBF16, config.L / 3};
}

}  // namespace kvilt
