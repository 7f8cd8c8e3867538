#include "forward/pattern_trials.h"

#include <algorithm>
#include <cmath>

#include "forward/sparse_rows.h"

namespace kvilt {

void run_trials(const PreparedModel& model, const TriedRows& of, std::span<const int> heads, PatternTrials& trials,
                ThreadPool& pool) {
  const ModelConfig& c = model.config();
  const int64_t group = c.H / c.G, n = std::ssize(of.rows.pos);
  std::vector<float> out(static_cast<size_t>(n * of.rows.out.stride)), lse(static_cast<size_t>(n * c.H));
  RowsAt rows = of.rows;
  rows.out = {out.data(), n, of.rows.out.cols, of.rows.out.stride};
  rows.lse = lse.data();
  Plan plan;
  plan.prompt_len = of.plan.prompt_len;
  SparseRows sparse(model, pool);
  std::vector<AttendTask> tasks;
  for (size_t rule = 0; rule < trials.rules.size(); ++rule) {
    plan.sparse = trials.rules[rule];
    for (const int g : heads) {
      PatternTrials::Tried& to = trials.tried[(rows.layer * c.G + g) * trials.rules.size() + rule];
      tasks.clear();
      to.flops += sparse.add_tasks(plan, of.kv, rows, {&g, 1}, tasks).flops;
      model.backend().attend(model.attend_shape(of.kv.shape().dtype), tasks, pool);
      sparse.clear();
      for (const int32_t pos : rows.pos) to.dense += 4.0 * c.E * static_cast<double>(group) * (pos + 1);
      for (int64_t i = g * n * group; i < (g + 1) * n * group; ++i) {
        const double share = std::exp(double{lse[i]} - double{of.rows.lse[i]});
        if (!std::isfinite(share)) continue;
        to.held += std::min(1.0, share);
        ++to.rows;
      }
    }
  }
}

}  // namespace kvilt
