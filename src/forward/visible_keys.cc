#include "forward/visible_keys.h"

#include <algorithm>

namespace kvilt {

const Runs* VisibleKeys::add_tasks(const Runs& unseen, const PageTable& kv, const RowsAt& rows,
                                   std::vector<AttendTask>& tasks, Cost& cost) {
  if (used_ == seen_.size()) seen_.emplace_back();
  Seen& seen = seen_[used_++];
  seen.heads.resize(static_cast<size_t>(config_.G));
  seen.spans.resize(static_cast<size_t>(config_.G));
  const int window = config_.window_at(rows.layer);
  const int32_t low = window < 0 ? 0 : std::max(0, rows.pos.front() - (window - 1));
  seen.positions = subtract(Runs{{low, rows.pos.back() + 1}}, unseen);
  if (window < 0) {
    cost = add_ranked(seen, kv, rows, tasks);
    return &seen.positions;
  }
  cost = add_windowed(seen, kv, rows, window - 1, tasks);
  return nullptr;
}

AttendTask VisibleKeys::task_of(const RowsAt& rows, int head) const {
  const int64_t group = config_.H / config_.G;
  AttendTask task;
  task.q = rows.q.row(0) + head * group * config_.E;
  task.out = rows.out.row(0) + head * group * config_.E;
  task.q_stride = task.out_stride = rows.out.stride;
  task.lse = rows.lse + head * rows.lse_rows() * group;
  task.sinks = model_.sinks(rows.layer, head);
  return task;
}

VisibleKeys::Cost VisibleKeys::add_ranked(Seen& seen, const PageTable& kv, const RowsAt& rows,
                                          std::vector<AttendTask>& tasks) {
  Cost cost;
  seen.ranks.clear();
  int32_t before = 0;  // keys in the runs before `run`
  auto run = seen.positions.begin();
  for (const int32_t pos : rows.pos) {
    for (; run != seen.positions.end() && run->end <= pos; ++run) before += run->size();
    const int32_t in_run = run == seen.positions.end() ? 0 : std::max(0, pos + 1 - run->begin);
    seen.ranks.push_back(before + in_run - 1);
    cost.flops += 4.0 * config_.E * config_.H * (seen.ranks.back() + 1);
  }
  for (int g = 0; g < config_.G; ++g) {
    RankedKeys& keys = seen.heads[g];
    keys.clear();
    keys.append(kv, rows.layer, g, seen.positions);
    AttendTask task = task_of(rows, g);
    task.pos = seen.ranks;
    task.spans = keys.spans();
    tasks.push_back(task);
    cost.keys += keys.size();
  }
  return cost;
}

VisibleKeys::Cost VisibleKeys::add_windowed(Seen& seen, const PageTable& kv, const RowsAt& rows, int reach,
                                            std::vector<AttendTask>& tasks) {
  Cost cost;
  for (const int32_t pos : rows.pos) {
    const Runs shown{{std::max(0, pos - reach), pos + 1}};
    cost.flops += 4.0 * config_.E * config_.H * static_cast<double>(count(intersect(seen.positions, shown)));
  }
  for (int g = 0; g < config_.G; ++g) {
    std::vector<KvSpan>& spans = seen.spans[g];
    spans.clear();
    for (const Run& part : seen.positions) kv.resolve(rows.layer, g, part, {.window = 0}, spans);
    AttendTask task = task_of(rows, g);
    task.pos = rows.pos;
    task.spans = spans;
    task.mask.reach = reach;
    tasks.push_back(task);
    cost.keys += static_cast<double>(count(seen.positions));
  }
  return cost;
}

}  // namespace kvilt
