#include "forward/sparse_rows.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "forward/join_attention.h"

namespace kvilt {

SparseCost SparseRows::add_tasks(const Plan& plan, const PageTable& kv, const RowsAt& rows, std::span<const int> heads,
                                 std::vector<AttendTask>& tasks) {
  SparseCost cost;
  const std::span<const int32_t> pos = rows.pos;
  const int32_t dense_from = rows.layer < plan.sparse->dense_layers
                                 ? 0
                                 : std::min(plan.sparse->answer, plan.prompt_len) - plan.sparse->dense_last;
  // Rows that only look, for a decode rule, choose for themselves.
  const Runs looks = plan.stages.empty() ? Runs{} : rows_that_only_look(plan.stages.back(), rows.layer);
  // Where the rows from `begin` on end that have the same pos / size and choose together.
  const auto group_end = [&](int64_t begin, int32_t size) {
    int64_t end = begin + 1;
    const auto kind = [&](int64_t r) { return std::pair(pos[r] >= dense_from, contains(looks, pos[r])); };
    while (end < std::ssize(pos) && pos[end] / size == pos[begin] / size && kind(end) == kind(begin)) ++end;
    return end;
  };
  for (int64_t begin = 0, end = 0; begin < std::ssize(pos); begin = end) {
    end = group_end(begin, kSparseBlock);
    const RowsOfBlock block{plan, kv, rows, begin, end};
    const bool dense = pos[begin] >= dense_from;
    const SparseChoice::Made made = dense ? SparseChoice::Made{} : choice_.choose(block, heads);
    cost += made.cost;
    const size_t pooled = pooled_.size(), looked = looked_.size();
    if (!dense && plan.sparse->pooled > 0) {
      cost += pool_keys(block, heads, made);
      for (const std::vector<float>& lse : made.lse)
        looked_.push_back({lse.empty() ? std::vector<int64_t>() : made.looked, lse, {}, {}});
    }
    std::vector<Runs> read(heads.size());  // by any of the tiles: what it reads lies in a cache for the next one
    for (int64_t first = begin, last = begin; first < end; first = last) {
      last = group_end(first, kSparseTile);
      const RowsOfBlock tile{plan, kv, rows, first, last};
      for (size_t i = 0; i < heads.size(); ++i) {
        const Run at = tile.positions();
        const Runs keys = dense ? Runs{{0, at.end}} : made.heads[i].keys(at.begin, at.end);
        cost.flops += add_tile(tile, heads[i], keys, tasks);
        read[i] = unite(read[i], keys);
        if (pooled == pooled_.size()) continue;
        const size_t means = means_.size();
        cost += add_mean(tile, heads[i], pooled_[pooled + i], keys, tasks.back());
        if (means < means_.size() && looked < looked_.size() && !looked_[looked + i].rows.empty())
          means_.back().looked = &looked_[looked + i];
      }
    }
    for (const Runs& keys : read) cost.keys += static_cast<double>(count(keys));
  }
  return cost;
}

// The means of what is no column of theirs, for each of the heads; the rows' own block is among what they see.
SparseCost SparseRows::pool_keys(const RowsOfBlock& block, std::span<const int> heads, const SparseChoice::Made& made) {
  const int32_t end = block.positions().end;
  const size_t first = pooled_.size();
  for (const int g : heads)
    pooled_.emplace_back(block.kv, PooledKeys::Of{block.rows.layer, g, block.plan.sparse->pooled, end});
  pool_.parallel_for(std::ssize(heads),
                     [&](int64_t i, int) { pooled_[first + static_cast<size_t>(i)].build(made.heads[i].columns); });
  return {0, static_cast<double>(heads.size()) * end};
}

// What the tile's rows skip, as a task of its own.
SparseCost SparseRows::add_mean(const RowsOfBlock& tile, int head, const PooledKeys& from, const Runs& keys,
                                const AttendTask& seen) {
  const ModelConfig& c = model_.config();
  const int64_t group = c.H / c.G, rows = std::ssize(seen.pos);
  PooledKeys::Part part = from.skipped(keys, tile.positions().begin / kSparseTile * kSparseTile);
  if (part.keys == 0) return {};
  Mean& mean = means_.emplace_back();
  mean.first = tile.begin;
  mean.seen = mean.skipped = seen;
  mean.spans = std::move(part.spans);
  mean.ranks.assign(static_cast<size_t>(rows), part.keys - 1);
  mean.out.resize(static_cast<size_t>(rows * group * c.E));
  mean.lse.resize(static_cast<size_t>(rows * group));
  mean.log_count = static_cast<float>(std::log(static_cast<double>(part.pooled) / part.keys));
  mean.skipped.pos = mean.ranks;
  mean.skipped.spans = mean.spans;
  mean.skipped.out = mean.out.data();
  mean.skipped.out_stride = group * c.E;
  mean.skipped.lse = mean.lse.data();
  mean.skipped.sinks = nullptr;  // it is in what the rows see
  return {4.0 * c.E * static_cast<double>(group * rows * part.keys), static_cast<double>(part.keys)};
}

// What the means of keys weigh is less than what the keys do. Rows that looked at all know by how much.
void SparseRows::calibrate() {
  const ModelConfig& c = model_.config();
  const int64_t group = c.H / c.G;
  for (Mean& mean : means_) {
    if (!mean.looked) continue;
    Looked& looked = *mean.looked;
    looked.missed.resize(static_cast<size_t>(group));
    looked.means.resize(static_cast<size_t>(group));
    for (size_t i = 0; i < looked.rows.size(); ++i) {
      const int64_t r = looked.rows[i] - mean.first;
      if (r < 0 || r >= std::ssize(mean.ranks)) continue;
      for (int64_t h = 0; h < group; ++h) {
        const double all = looked.lse[i * static_cast<size_t>(group) + h];
        looked.missed[h] += std::max(0.0, 1 - std::exp(mean.seen.lse[r * group + h] - all));
        looked.means[h] += std::exp(mean.lse[r * group + h] + mean.log_count - all);
      }
    }
  }
}

// What (4) of docs/math/pooled_keys.md adds. A means' weight is never too large, and where little is missed, little is
// known: a hundredth of a row's attention is taken as right.
float SparseRows::correction(const Mean& mean, int64_t h) {
  if (!mean.looked || mean.looked->means.empty()) return 0;
  const double known = 0.01 * static_cast<double>(mean.looked->rows.size());
  const double more = (mean.looked->missed[h] + known) / (mean.looked->means[h] + known);
  return static_cast<float>(std::log(std::max(1.0, more)));
}

void SparseRows::join_skipped(DType kv_type) {
  std::vector<AttendTask> tasks;
  for (const Mean& mean : means_) tasks.push_back(mean.skipped);
  if (tasks.empty()) return;
  model_.backend().attend(model_.attend_shape(kv_type), tasks, pool_);
  const ModelConfig& c = model_.config();
  const int64_t group = c.H / c.G;
  calibrate();
  for (const Mean& mean : means_) {
    for (int64_t r = 0; r < std::ssize(mean.ranks); ++r) {
      for (int64_t h = 0; h < group; ++h) {
        float& lse = mean.seen.lse[r * group + h];
        const float other = mean.lse[r * group + h] + mean.log_count + correction(mean, h);
        join_attention(mean.seen.out + r * mean.seen.out_stride + h * c.E, lse, mean.out.data() + (r * group + h) * c.E,
                       other, c.E);
      }
    }
  }
}

// The task of a tile's rows, all of which see the keys up to their own.
double SparseRows::add_tile(const RowsOfBlock& tile, int head, const Runs& keys, std::vector<AttendTask>& tasks) {
  const ModelConfig& c = model_.config();
  const int64_t group = c.H / c.G, rows = std::ssize(tile.rows.pos);
  Tile& to = tiles_.emplace_back();
  to.keys.append(tile.kv, tile.rows.layer, head, keys);
  double flops = 0;
  int32_t before = 0;  // keys in the runs before `run`
  auto run = keys.begin();
  for (int64_t r = tile.begin; r < tile.end; ++r) {
    const int32_t pos = tile.rows.pos[r];
    for (; run->end <= pos; ++run) before += run->size();
    to.ranks.push_back(before + pos - run->begin);
    flops += 4.0 * c.E * static_cast<double>(group) * (to.ranks.back() + 1);
  }
  AttendTask task;
  task.q = tile.rows.q.row(tile.begin) + head * group * c.E;
  task.out = tile.rows.out.row(tile.begin) + head * group * c.E;
  task.q_stride = task.out_stride = tile.rows.out.stride;
  task.pos = to.ranks;
  task.spans = to.keys.spans();
  task.lse = tile.rows.lse + (head * rows + tile.begin) * group;
  task.sinks = model_.sinks(tile.rows.layer, head);
  tasks.push_back(task);
  return flops;
}

}  // namespace kvilt
