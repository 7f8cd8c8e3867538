#include "forward/look_outside.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "forward/key_masks.h"

namespace kvilt {

double look_outside(const PreparedModel& model, ThreadPool& pool, const OutsideProbe& probe, std::span<double> sums) {
  const ModelConfig& c = model.config();
  const int64_t group = c.H / c.G, width = group * c.E;
  std::vector<int32_t> pos;
  std::vector<int64_t> rows;
  for (size_t r = 0; r < probe.heads[0].pos.size(); ++r) {
    if (!contains(probe.spec.rows, probe.heads[0].pos[r])) continue;
    pos.push_back(probe.heads[0].pos[r]);
    rows.push_back(static_cast<int64_t>(r));
  }
  if (pos.empty()) return 0;
  const auto n = static_cast<int64_t>(rows.size());
  FloatMat q_memory, out_memory;
  const Mat<float> q = q_memory.reshape(n * c.G, width), out = out_memory.reshape(n * c.G, width);
  std::vector<AttendTask> tasks(probe.heads.begin(), probe.heads.end());
  for (int g = 0; g < c.G; ++g) {
    AttendTask& task = tasks[static_cast<size_t>(g)];
    for (int64_t r = 0; r < n; ++r)
      std::copy_n(task.q + rows[static_cast<size_t>(r)] * task.q_stride, width, q.row(g * n + r));
    task.q = q.row(g * n);
    task.out = out.row(g * n);
    task.q_stride = task.out_stride = width;
    task.pos = pos;
  }
  double flops = 0;
  std::vector<float> all(static_cast<size_t>(n * c.H)), seen(all.size());
  const auto pass = [&](const View& view, std::vector<float>& lse) {
    for (int g = 0; g < c.G; ++g) {
      AttendTask& task = tasks[static_cast<size_t>(g)];
      task.mask.sink = view.sink;
      task.mask.window = view.window;
      task.mask.dense_from = INT32_MAX;
      task.lse = lse.data() + g * n * group;
      for (const int32_t at : pos) flops += 4.0 * c.E * static_cast<double>(group) * visible(task.mask, at);
    }
    model.backend().attend(model.attend_shape(probe.kv_type), tasks, pool);
  };
  pass({}, all);
  const size_t views = probe.spec.views.size();
  for (size_t v = 0; v < views; ++v) {
    pass(probe.spec.views[v], seen);
    for (int64_t h = 0; h < c.H; ++h) {
      for (int64_t r = 0; r < n; ++r) {
        const auto i = static_cast<size_t>((h / group * n + r) * group + h % group);
        sums[static_cast<size_t>(h) * views + v] += std::max(0.0, 1.0 - std::exp(double{seen[i]} - double{all[i]}));
      }
    }
  }
  return flops;
}

}  // namespace kvilt
