#include "forward/heavy_chooser.h"

#include <algorithm>
#include <utility>

#include "forward/key_masks.h"

namespace kvilt {
namespace {

constexpr int32_t kRowsAtOnce = 64;  // their weights are kept until they are summed

}  // namespace

// What rows [part.begin, part.end) of `rows` saw at this head, without their weights.
HeavyChooser::Looked HeavyChooser::look(const KeySource& from, const AttendedQueries& rows, Run part, int head) const {
  const int64_t group = config_.H / config_.G, n = std::ssize(rows.pos);
  const std::span<const int32_t> pos = rows.pos.subspan(part.begin, part.size());
  Looked out;
  out.keys = pos.back() + 1;
  if (const RankedKeys* seen = rows.seen[head]) {  // one row, of the answer
    out.task.spans = seen->spans();
    out.ranks = {seen->size() - 1};
  } else {
    out.task.mask = rows.masks[head];
    from.kv.resolve(rows.layer, head, {pos.front(), pos.back() + 1}, out.task.mask, out.spans);
    out.ranks.assign(pos.begin(), pos.end());
  }
  out.task.q = rows.q.row(part.begin) + head * group * config_.E;
  out.task.q_stride = rows.q.stride;
  out.task.lse = rows.lse + (head * n + part.begin) * group;
  out.weights.resize(static_cast<size_t>(part.size() * (out.ranks.back() + int64_t{1})), 0);
  return out;
}

void HeavyChooser::add(const Looked& looked, int64_t rows, HeavyKeys& to) const {
  const int64_t width = looked.ranks.back() + int64_t{1};
  for (int64_t r = 0; r < rows; ++r)
    to.add(looked.keys, {looked.weights.data() + r * width, static_cast<size_t>(width)});
}

ChoiceCost HeavyChooser::add_rows(const KeySource& from, const AttendedQueries& rows, Run part) {
  std::vector<Looked> looked;
  std::vector<int> heads;
  for (int g = 0; g < config_.G; ++g) {
    if (!sees_all(rows.masks[g], std::max(prefill_len_, rows.pos[part.begin]))) continue;  // it never chooses
    looked.push_back(look(from, rows, part, g));
    heads.push_back(g);
  }
  std::vector<ColumnSumTask> sums;
  double keys = 0, seen = 0;
  for (Looked& of : looked) {
    of.task.pos = of.ranks;
    if (!of.spans.empty()) of.task.spans = of.spans;
    const int64_t width = of.ranks.back() + int64_t{1};
    sums.push_back({&of.task, nullptr, false, of.weights.data(), width});
    keys += static_cast<double>(width);
    for (const int32_t rank : of.ranks) seen += visible(of.task.mask, rank);
  }
  if (looked.empty()) return {};
  const PreparedModel& model = from.model;
  model.backend().column_sums(model.attend_shape(from.kv.shape().dtype), sums, from.pool);
  from.pool.parallel_for(std::ssize(looked), [&](int64_t i, int) {
    add(looked[i], part.size(), keys_[rows.layer * config_.G + heads[i]]);
  });
  return {2.0 * config_.E * (config_.H / config_.G) * seen, keys * static_cast<double>(from.kv.shape().row_bytes())};
}

ChoiceCost HeavyChooser::attended(const KeySource& from, const AttendedQueries& rows) {
  ChoiceCost cost;
  if (rows.layer < rule_.dense_layers) return cost;
  const auto n = static_cast<int32_t>(rows.pos.size());
  for (int32_t begin = 0; begin < n; begin += kRowsAtOnce) {
    const ChoiceCost part = add_rows(from, rows, {begin, std::min(n, begin + kRowsAtOnce)});
    cost.flops += part.flops;
    cost.bytes += part.bytes;
  }
  return cost;
}

std::vector<Runs> HeavyChooser::choose(const KeySource& from, LayerRow at, const float*, std::span<const int> heads,
                                       ChoiceCost&) {
  const auto some = [&](std::span<const int> of) {
    std::vector<std::vector<double>> scores;
    std::vector<double> lost;
    for (const int g : of) {
      HeavyKeys& keys = keys_[at.layer * config_.G + g];
      scores.push_back(keys.scores(at.pos));
      lost.push_back(keys.lost());
    }
    std::vector<Runs> out = choose_keys(rule_, at.layer, config_.L, scores, at.pos, lost);
    for (size_t i = 0; i < of.size(); ++i) out[i] = keys_[at.layer * config_.G + of[i]].keep(out[i]);
    return out;
  };
  if (!choose_alone(rule_)) return some(heads);
  std::vector<Runs> out(heads.size());
  from.pool.parallel_for(std::ssize(heads),
                         [&](int64_t i, int) { out[i] = std::move(some(heads.subspan(i, 1)).front()); });
  return out;
}

}  // namespace kvilt
