#include "forward/held_mass.h"

#include <algorithm>
#include <cmath>

namespace kvilt {

HeldMass held_mass(const PreparedModel& model, const PageTable& kv, const RowsAt& rows, std::span<const int> heads,
                   ThreadPool& pool) {
  const ModelConfig& c = model.config();
  const int64_t group = c.H / c.G, width = int64_t{c.H} * c.E, all = std::ssize(rows.pos);
  std::vector<int64_t> measured;
  for (int64_t r = 0; r < all; ++r) {
    if (all == 1 || rows.pos[r] % kHeldEvery == 0) measured.push_back(r);
  }
  HeldMass out;
  if (measured.empty() || heads.empty()) return out;
  const auto n = static_cast<size_t>(std::ssize(measured));
  std::vector<int32_t> pos;
  std::vector<float> q(n * static_cast<size_t>(width)), values(q.size()), lse(n * static_cast<size_t>(c.H));
  for (const int64_t r : measured) {
    std::copy_n(rows.q.row(r), width, q.begin() + std::ssize(pos) * width);
    pos.push_back(rows.pos[r]);
  }
  std::vector<KvSpan> spans;
  std::vector<size_t> first{0};
  for (const int g : heads) {
    kv.resolve(rows.layer, g, {pos.front(), pos.back() + 1}, {}, spans);
    first.push_back(spans.size());
  }
  std::vector<AttendTask> tasks(heads.size());
  for (size_t i = 0; i < heads.size(); ++i) {
    AttendTask& task = tasks[i];
    task.q = q.data() + heads[i] * group * c.E;
    task.out = values.data() + heads[i] * group * c.E;
    task.q_stride = task.out_stride = width;
    task.pos = pos;
    task.spans = std::span(spans).subspan(first[i], first[i + 1] - first[i]);
    task.lse = lse.data() + static_cast<int64_t>(i * n) * group;
  }
  model.backend().attend(model.attend_shape(kv.shape().dtype), tasks, pool);
  for (size_t i = 0; i < heads.size(); ++i) {
    for (size_t r = 0; r < n; ++r) {
      const float* seen = rows.lse + (heads[i] * all + measured[r]) * group;
      for (int64_t h = 0; h < group; ++h) {
        const double share = std::exp(double{seen[h]} - double{tasks[i].lse[static_cast<int64_t>(r) * group + h]});
        if (std::isfinite(share)) out += {std::min(1.0, share), 1};
      }
    }
  }
  return out;
}

}  // namespace kvilt
