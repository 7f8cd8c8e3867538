#include "forward/selected_keys.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "forward/key_masks.h"

namespace kvilt {

SelectedKeys::SelectedKeys(const DecodeRule& rule, const ModelConfig& config, int32_t prompt_len, int32_t prefill_len)
    : rule_(rule), config_(config), prompt_len_(prompt_len), prefill_len_(prefill_len) {
  heads_.resize(static_cast<size_t>(config.L) * static_cast<size_t>(config.G));
  chosen_.resize(static_cast<size_t>(config.L));
  if (rule.by == DecodeRule::By::kAttention) queries_.resize(static_cast<size_t>(config.L));
}

bool SelectedKeys::wants_query(int32_t pos) const {
  if (queries_.empty() || pos < prefill_len_ - rule_.queries) return false;
  return rule_.every > 0 ||
         pos < std::max(prefill_len_, prompt_len_ + rule_.dense_rows);  // else no choice comes after it
}

void SelectedKeys::keep_query(int layer, int32_t pos, const float* q, std::span<const float> lse) {
  Queries& to = queries_[layer];
  if (to.pos.empty()) {
    to.q.reshape(rule_.queries, int64_t{config_.H} * config_.E);
    to.lse.resize(static_cast<size_t>(rule_.queries) * static_cast<size_t>(config_.H));
    to.pos.assign(static_cast<size_t>(rule_.queries), -1);
  }
  const int64_t r = pos % rule_.queries;
  std::copy_n(q, int64_t{config_.H} * config_.E, to.q.view().row(r));
  std::ranges::copy(lse, to.lse.begin() + r * config_.H);
  to.pos[r] = pos;
}

bool SelectedKeys::chooses_at(LayerRow at) const {
  const int32_t n = at.pos - prompt_len_;
  if (at.pos < prefill_len_ || n < rule_.dense_rows) return false;
  // A request that was preempted starts again in the middle of its answer.
  return rule_.chooses_at(n) || !chosen_[at.layer];
}

// The rows of the ring that lie in [pos - queries, pos), by position.
std::vector<int32_t> SelectedKeys::rows_before(LayerRow at) const {
  std::vector<int32_t> out;
  if (queries_[at.layer].pos.empty()) return out;
  for (int32_t p = std::max(0, at.pos - rule_.queries); p < at.pos; ++p) {
    if (queries_[at.layer].pos[p % rule_.queries] == p) out.push_back(p);
  }
  return out;
}

// scores_ = by open head, the attention weights of the rows before at.pos, summed over rows and the group's heads. A row
// that saw few keys weighs with the normaliser of these: a key that it did not see may count more than 1, up to 2.
SelectedKeys::Cost SelectedKeys::sum_weights(const PreparedModel& model, const PageTable& kv, LayerRow at,
                                             ThreadPool& pool) {
  const Queries& from = queries_[at.layer];
  const std::vector<int32_t> rows = rows_before(at);
  const int64_t n = std::ssize(rows), group = config_.H / config_.G, width = int64_t{config_.H} * config_.E;
  std::vector<float> q(static_cast<size_t>(n * width)), lse(static_cast<size_t>(n * config_.H));
  for (int64_t r = 0; r < n; ++r) {
    const int64_t kept = rows[r] % rule_.queries;
    std::copy_n(from.q.view().row(kept), width, q.begin() + r * width);
    for (int64_t g = 0; g < config_.G; ++g)
      std::copy_n(from.lse.begin() + kept * config_.H + g * group, group, lse.begin() + (g * n + r) * group);
  }
  spans_.clear();
  std::vector<size_t> first{0};
  for (const int g : open_) {
    kv.resolve(at.layer, g, {0, at.pos}, {}, spans_);
    first.push_back(spans_.size());
  }
  scores_.assign(open_.size(), std::vector<double>(static_cast<size_t>(at.pos), 0));
  std::vector<AttendTask> tasks(open_.size());
  std::vector<ColumnSumTask> sums;
  for (size_t i = 0; i < open_.size(); ++i) {
    AttendTask& task = tasks[i];
    task.q = q.data() + open_[i] * group * config_.E;
    task.q_stride = width;
    task.pos = rows;
    task.spans = std::span(spans_).subspan(first[i], first[i + 1] - first[i]);
    task.lse = lse.data() + open_[i] * n * group;
    sums.push_back({&task, scores_[i].data(), false});
  }
  if (n > 0) model.backend().column_sums(model.attend_shape(kv.shape().dtype), sums, pool);
  for (std::vector<double>& of_head : scores_) {  // a sort needs an order
    for (double& score : of_head) score = std::isfinite(score) ? score : 0;
  }
  const double keys = static_cast<double>(open_.size()) * at.pos;
  return {2.0 * static_cast<double>(n * group * config_.E) * keys, keys * static_cast<double>(kv.shape().row_bytes())};
}

SelectedKeys::Cost SelectedKeys::choose(const PreparedModel& model, const PageTable& kv, std::span<const KeyMask> masks,
                                        LayerRow at, ThreadPool& pool) {
  chosen_[at.layer] = 1;
  open_.clear();
  for (int g = 0; g < config_.G; ++g) {
    if (sees_all(masks[g], at.pos)) open_.push_back(g);
  }
  if (open_.empty()) return {};
  const bool looks = !queries_.empty() && at.pos > rule_.budget_of(at.layer, config_.L);
  const Cost cost = looks ? sum_weights(model, kv, at, pool) : Cost();
  scores_.resize(open_.size());  // where nobody looks they are not read
  const std::vector<Runs> keys = choose_keys(rule_, at.layer, config_.L, scores_, at.pos);
  for (size_t i = 0; i < open_.size(); ++i) {
    Head& head = heads_[at.layer * config_.G + open_[i]];
    head.chosen = true;
    head.keys.clear();
    for (const Run& run : keys[i]) head.keys.append(kv, at.layer, open_[i], run);
    head.until = at.pos;
  }
  return cost;
}

const SelectedKeys::Seen* SelectedKeys::seen(const PageTable& kv, const KeyMask& mask, LayerRow at, int head) {
  Head& of = heads_[at.layer * config_.G + head];
  if (!of.chosen || !sees_all(mask, at.pos)) return nullptr;
  if (of.until <= at.pos) of.keys.append(kv, at.layer, head, {of.until, at.pos + 1});
  of.until = at.pos + 1;
  of.row = of.keys.size() - 1;
  of.seen = {of.keys.spans(), {&of.row, 1}};
  return &of.seen;
}

}  // namespace kvilt
