#include "forward/page_chooser.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tensor/kv_row.h"

namespace kvilt {

PageBounds& PageChooser::bounds_of(int layer, int head) {
  while (std::ssize(bounds_) < int64_t{config_.L} * config_.G) bounds_.emplace_back(config_.E, rule_.page);
  return bounds_[layer * config_.G + head];
}

// The keys of the spans come after those that are in the bounds.
void PageChooser::extend(const KeySource& from, int layer, std::span<const KvSpan> spans, PageBounds& bounds) const {
  constexpr int32_t kSome = 16;  // 4 KB of 64 channels: they stay in L1
  const KvShape& shape = from.kv.shape();
  const LayerRopes ropes = from.kv.ropes();
  const RopeConfig& rope = ropes.at(layer);
  std::vector<float> keys(static_cast<size_t>(kSome) * static_cast<size_t>(config_.E));
  for (const KvSpan& span : spans) {
    const auto* bytes = static_cast<const std::byte*>(span.k);
    for (int32_t done = 0, n; done < span.count; done += n) {
      n = std::min(kSome, span.count - done);
      for (int32_t i = 0; i < n; ++i, bytes += shape.row_bytes()) {
        float* key = keys.data() + int64_t{i} * config_.E;
        decode_kv_row(shape.dtype, config_.E, bytes, key);
        if (span.rotation) rotate_head(rope.pairs, rope.rotary_dim, span.rotation, 1.0f, key);
      }
      bounds.add({keys.data(), static_cast<size_t>(n) * static_cast<size_t>(config_.E)});
    }
  }
}

// By page; 0 for the newest where it is not full. q: the queries of the head's group.
std::vector<double> PageChooser::scores_of(const KeySource& from, const float* q, const PageBounds& bounds) const {
  constexpr int32_t kStep = 16;  // kernels take so many pages as easily as fewer
  std::vector<float> weights(static_cast<size_t>(2 * config_.E), 0);
  for (int h = 0; h < config_.H / config_.G; ++h)
    PageBounds::add_query({q + int64_t{h} * config_.E, static_cast<size_t>(config_.E)}, weights);
  std::vector<float> out(static_cast<size_t>(bounds.blocks()) * PageBounds::kBlock);
  for (int32_t b = 0; b < bounds.blocks(); ++b) {
    Mat<const float> block = bounds.block(b);
    const int32_t first = b * PageBounds::kBlock, left = bounds.pages() - first;
    block.cols = std::min((left + kStep - 1) / kStep * kStep, PageBounds::kBlock);
    from.model.backend().mix({weights.data(), 1, std::ssize(weights)}, block, {out.data() + first, 1, block.cols});
  }
  std::vector<double> scores(static_cast<size_t>((bounds.keys() + rule_.page - 1) / rule_.page), 0);
  for (int32_t n = 0; n < bounds.pages(); ++n) scores[n] = std::isfinite(out[n]) ? out[n] : 0;  // a sort needs an order
  return scores;
}

// Of each head's keys only those that hold the share of the row's weights, summed over the group. The normalisers come
// from attention over these keys, whose result nobody reads.
void PageChooser::prune(const Asking& row, std::span<const int> heads, std::vector<Runs>& keys,
                        ChoiceCost& cost) const {
  const int64_t group = config_.H / config_.G, width = group * config_.E;
  const size_t n = heads.size();
  std::vector<RankedKeys> candidates(n);
  std::vector<int32_t> last(n);
  std::vector<float> lse(n * static_cast<size_t>(group)), unread(n * static_cast<size_t>(width));
  std::vector<AttendTask> tasks(n);
  std::vector<std::vector<double>> weights(n);
  std::vector<ColumnSumTask> sums;
  double seen = 0;
  for (size_t i = 0; i < n; ++i) {
    candidates[i].append(row.from.kv, row.at.layer, heads[i], keys[i]);
    last[i] = candidates[i].size() - 1;
    weights[i].assign(static_cast<size_t>(candidates[i].size()), 0);
    AttendTask& task = tasks[i];
    task.q = row.q + heads[i] * width;
    task.out = unread.data() + static_cast<int64_t>(i) * width;
    task.q_stride = task.out_stride = width;
    task.pos = {&last[i], 1};
    task.spans = candidates[i].spans();
    task.lse = lse.data() + static_cast<int64_t>(i) * group;
    sums.push_back({&task, weights[i].data(), false});
    seen += candidates[i].size();
  }
  const KvShape& shape = row.from.kv.shape();
  const AttendShape attend = row.from.model.attend_shape(shape.dtype);
  row.from.model.backend().attend(attend, tasks, row.from.pool);
  row.from.model.backend().column_sums(attend, sums, row.from.pool);
  for (size_t i = 0; i < n; ++i) {
    for (double& weight : weights[i]) weight = std::isfinite(weight) ? weight : 0;  // a sort needs an order
    keys[i] = heaviest(keys[i], weights[i], rule_.top_p);
  }
  cost.flops += 6.0 * static_cast<double>(width) * seen;
  cost.bytes += 3.0 * seen * static_cast<double>(shape.row_bytes());
}

std::vector<Runs> PageChooser::choose(const KeySource& from, LayerRow at, const float* q, std::span<const int> heads,
                                      ChoiceCost& cost) {
  const int64_t group = config_.H / config_.G;
  if (rule_.takes_all(at.layer, config_.L, at.pos))
    return choose_pages(rule_, at.layer, config_.L, std::vector<std::vector<double>>(heads.size()), at.pos);
  spans_.clear();
  std::vector<size_t> first{0};
  for (const int g : heads) {
    const int32_t known = bounds_of(at.layer, g).keys();
    from.kv.resolve(at.layer, g, {known, at.pos}, {.window = 0}, spans_);
    first.push_back(spans_.size());
    cost.bytes += static_cast<double>(at.pos - known) * static_cast<double>(from.kv.shape().row_bytes());
  }
  std::vector<Runs> keys(heads.size());
  from.pool.parallel_for(std::ssize(heads), [&](int64_t i, int) {
    PageBounds& bounds = bounds_of(at.layer, heads[i]);
    extend(from, at.layer, std::span(spans_).subspan(first[i], first[i + 1] - first[i]), bounds);
    const std::vector<double> scores = scores_of(from, q + heads[i] * group * config_.E, bounds);
    keys[i] = std::move(choose_pages(rule_, at.layer, config_.L, {&scores, 1}, at.pos).front());
  });
  const double pages = at.pos / rule_.page, extremes = 2.0 * config_.E * static_cast<double>(heads.size()) * pages;
  cost.flops += 2 * extremes;
  cost.bytes += sizeof(float) * extremes;
  if (rule_.top_p < 1) prune({from, at, q}, heads, keys, cost);
  return keys;
}

}  // namespace kvilt
