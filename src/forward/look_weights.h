// forward/look_weights.h: the attention weights of some rows, as they are (plan.h, Estimator::kWeights): for profiles, not for serving.
// Cost: one more pass of q k over the rows' keys; 4 bytes a (query head, row, position).
#pragma once

#include <span>
#include <vector>

#include "forward/prepared_model.h"
#include "plan/plan.h"

namespace kvilt {

struct WeightsProbe {
  const ProbeSpec& spec;
  std::span<const AttendTask>
      heads;  // a layer's, one per KV head, of one sequence, with lse; among their rows are the probe's
  DType kv_type;
  int32_t prompt_len;
};

// Fills in the rows that are here (plan.h, Probe::weights). Returns the floating point operations.
double look_weights(const PreparedModel& model, ThreadPool& pool, const WeightsProbe& probe,
                    std::vector<float>& weights);

}  // namespace kvilt
