#include "forward/look_weights.h"

#include <algorithm>

#include "forward/key_masks.h"

namespace kvilt {

double look_weights(const PreparedModel& model, ThreadPool& pool, const WeightsProbe& probe,
                    std::vector<float>& weights) {
  const ModelConfig& c = model.config();
  const int64_t group = c.H / c.G, all_rows = count(probe.spec.rows), T = probe.prompt_len;
  weights.resize(static_cast<size_t>(c.H * all_rows * T), 0);
  AttendShape shape = model.attend_shape(probe.kv_type);
  shape.group = 1;  // every query head by itself
  double flops = 0;
  const std::span<const int32_t> pos = probe.heads[0].pos;
  std::vector<AttendTask> tasks(static_cast<size_t>(c.H));
  std::vector<ColumnSumTask> sums(tasks.size());
  std::vector<double> columns(tasks.size() * static_cast<size_t>(T));
  for (size_t r = 0; r < pos.size(); ++r) {
    if (!contains(probe.spec.rows, pos[r])) continue;
    const int64_t row = count(intersect(probe.spec.rows, Runs{{0, pos[r]}}));
    std::fill(columns.begin(), columns.end(), 0.0);
    for (int64_t h = 0; h < c.H; ++h) {
      const auto i = static_cast<size_t>(h);
      const AttendTask& from = probe.heads[static_cast<size_t>(h / group)];
      tasks[i] = from;
      tasks[i].q = from.q + static_cast<int64_t>(r) * from.q_stride + h % group * c.E;
      tasks[i].lse = from.lse + static_cast<int64_t>(r) * group + h % group;
      tasks[i].pos = pos.subspan(r, 1);
      sums[i] = {&tasks[i], columns.data() + h * T, false};
      flops += 2.0 * c.E * static_cast<double>(visible(from.mask, pos[r]));
    }
    model.backend().column_sums(shape, sums, pool);
    for (int64_t h = 0; h < c.H; ++h) std::copy_n(columns.data() + h * T, T, weights.data() + (h * all_rows + row) * T);
  }
  return flops;
}

}  // namespace kvilt
