#include "forward/far_rows.h"

#include <algorithm>

#include "base/check.h"
#include "forward/join_attention.h"

namespace kvilt {
namespace {

// How far the placed key at `pos` is from where it was computed. REQUIRES: it is read turned.
int32_t shift_at(const PageTable& kv, int32_t pos) {
  const std::span<const Placement> all = kv.placements();
  const auto after = std::ranges::upper_bound(all, pos, {}, &Placement::pos);
  CHECK(after != all.begin() && pos < std::prev(after)->positions().end);
  return std::prev(after)->shift();
}

}  // namespace

VisibleKeys::Cost FarRows::add_tasks(const Keys& keys, const PageTable& kv, const RowsAt& rows,
                                     std::vector<AttendTask>& tasks) {
  const ModelConfig& c = model_.config();
  const int64_t group = c.H / c.G, count_of_rows = std::ssize(rows.pos), width = int64_t{c.H} * c.E;
  const auto count_of_keys = static_cast<int32_t>(count(keys.positions));
  CHECK(count_of_keys > 0 && std::ssize(tasks) >= c.G && rows.pos.front() >= keys.positions.back().end);
  Part& part = parts_.emplace_back();
  turn_queries(keys, kv, rows, part.q);
  part.out.resize(part.q.size());
  part.lse.resize(static_cast<size_t>(count_of_rows * c.H));
  part.ranks.assign(static_cast<size_t>(count_of_rows), count_of_keys - 1);
  part.spans.resize(static_cast<size_t>(c.G));
  part.near.assign(tasks.end() - c.G, tasks.end());
  for (int g = 0; g < c.G; ++g) {
    find_keys(keys, kv, rows.layer, g, part.spans[g]);
    AttendTask task;
    task.q = part.q.data() + g * group * c.E;
    task.out = part.out.data() + g * group * c.E;
    task.q_stride = task.out_stride = width;
    task.pos = part.ranks;
    task.spans = part.spans[g];
    task.lse = part.lse.data() + g * count_of_rows * group;
    part.far.push_back(task);  // the sink is in the other task
  }
  tasks.insert(tasks.end(), part.far.begin(), part.far.end());
  const auto cells = static_cast<double>(count_of_rows) * count_of_keys;
  return {4.0 * c.E * c.H * cells, static_cast<double>(c.G) * count_of_keys};
}

// The rows' queries as if each were at keys.distance. They were rotated, and scaled, at their positions.
void FarRows::turn_queries(const Keys& keys, const PageTable& kv, const RowsAt& rows, std::vector<float>& q) const {
  const ModelConfig& c = model_.config();
  const RopeConfig& rope = kv.ropes().at(rows.layer);
  const int64_t width = int64_t{c.H} * c.E;
  q.resize(rows.pos.size() * static_cast<size_t>(width));
  for (int64_t r = 0; r < std::ssize(rows.pos); ++r) {
    float* to = q.data() + r * width;
    std::copy_n(rows.q.row(r), width, to);
    if (rows.pos[r] == keys.distance) continue;
    const std::vector<float> by = rotation(rope, keys.distance - rows.pos[r]);
    for (int h = 0; h < c.H; ++h) rotate_head(rope.pairs, rope.rotary_dim, by.data(), 1, to + int64_t{h} * c.E);
  }
}

// Each key by itself, by rank, and turned to position 0.
void FarRows::find_keys(const Keys& keys, const PageTable& kv, int layer, int head, std::vector<KvSpan>& out) {
  const RopeConfig& rope = kv.ropes().at(layer);
  const int64_t row_bytes = kv.shape().row_bytes();
  std::vector<KvSpan> found;
  kv.resolve(layer, head, keys.positions, found);
  int32_t rank = 0;
  for (const KvSpan& span : found) {
    const int32_t computed_at = span.pos - (span.rotation ? shift_at(kv, span.pos) : 0);
    for (int32_t n = 0; n < span.count; ++n) {
      out.push_back({static_cast<const std::byte*>(span.k) + n * row_bytes,
                     static_cast<const std::byte*>(span.v) + n * row_bytes, back_from(rope, computed_at + n), rank++,
                     1});
    }
  }
  CHECK(rank == count(keys.positions));
}

const float* FarRows::back_from(const RopeConfig& rope, int32_t pos) {
  if (pos == 0) return nullptr;
  std::vector<std::vector<float>>& by_pos = back_[&rope];
  if (pos >= std::ssize(by_pos)) by_pos.resize(static_cast<size_t>(pos) + 1);
  std::vector<float>& angles = by_pos[static_cast<size_t>(pos)];
  if (angles.empty()) angles = rotation(rope, -pos);
  return angles.data();
}

void FarRows::join() {
  const ModelConfig& c = model_.config();
  const int64_t group = c.H / c.G;
  for (const Part& part : parts_) {
    for (int g = 0; g < c.G; ++g) {
      const AttendTask &near = part.near[g], &far = part.far[g];
      for (int64_t r = 0; r < std::ssize(part.ranks); ++r) {
        for (int64_t h = 0; h < group; ++h) {
          join_attention(near.out + r * near.out_stride + h * c.E, near.lse[r * group + h],
                         far.out + r * far.out_stride + h * c.E, far.lse[r * group + h], c.E);
        }
      }
    }
  }
}

}  // namespace kvilt
