// forward/look_outside.h: how much of some rows' attention lies outside of views (plan.h, Estimator::kOutside): the edge mass of
// RedKnot (METHODS 2.3).
// Idea: a view's share of a row's attention is exp(lse of the view - lse of all), so attention's own normalisers suffice: no
//       weights are stored, and the sum is exact.
// Cost: attention of the probe's rows once in full and once a view.
#pragma once

#include <span>

#include "forward/prepared_model.h"
#include "plan/plan.h"

namespace kvilt {

struct OutsideProbe {
  const ProbeSpec& spec;
  std::span<const AttendTask> heads;  // a layer's, one per KV head, of one sequence; among their rows are the probe's
  DType kv_type;
};

// Adds to sums[query head * views + view] for every probe row. Returns the floating point operations.
double look_outside(const PreparedModel& model, ThreadPool& pool, const OutsideProbe& probe, std::span<double> sums);

}  // namespace kvilt
