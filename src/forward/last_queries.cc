#include "forward/last_queries.h"

#include <algorithm>
#include <cmath>

#include "forward/looking_rows.h"

namespace kvilt {

LastQueries::LastQueries(const DecodeRule& rule, const ModelConfig& config, int32_t prompt_len, int32_t prefill_len)
    : rule_(rule),
      config_(config),
      prompt_len_(prompt_len),
      prefill_len_(prefill_len),
      queries_(static_cast<size_t>(config.L)) {}

bool LastQueries::wants(int32_t pos) const {
  if (rule_.every > 0) return pos >= prefill_len_ - rule_.queries;
  const int32_t choice = prompt_len_ + rule_.dense_rows;  // the only one
  return pos >= choice - rule_.queries && pos < choice;
}

ChoiceCost LastQueries::attended(const KeySource&, const AttendedQueries& rows) {
  for (int64_t r = 0; r < std::ssize(rows.pos); ++r) {
    if (wants(rows.pos[r])) keep(rows, r);
  }
  return {};
}

void LastQueries::keep(const AttendedQueries& rows, int64_t r) {
  Queries& to = queries_[rows.layer];
  const int64_t width = int64_t{config_.H} * config_.E, group = config_.H / config_.G, n = std::ssize(rows.pos);
  if (to.pos.empty()) {
    to.q.reshape(rule_.queries, width);
    to.lse.resize(static_cast<size_t>(rule_.queries) * static_cast<size_t>(config_.H));
    to.pos.assign(static_cast<size_t>(rule_.queries), -1);
  }
  const int64_t kept = rows.pos[r] % rule_.queries;
  std::copy_n(rows.q.row(r), width, to.q.view().row(kept));
  for (int64_t g = 0; g < config_.G; ++g)
    std::copy_n(rows.lse + (g * n + r) * group, group, to.lse.begin() + kept * config_.H + g * group);
  to.pos[kept] = rows.pos[r];
}

// The rows that are kept and lie in [pos - queries, pos), by position.
std::vector<int32_t> LastQueries::rows_before(LayerRow at) const {
  std::vector<int32_t> out;
  if (queries_[at.layer].pos.empty()) return out;
  for (int32_t p = std::max(0, at.pos - rule_.queries); p < at.pos; ++p) {
    if (queries_[at.layer].pos[p % rule_.queries] == p) out.push_back(p);
  }
  return out;
}

// scores_ = by head, the attention weights of the rows before at.pos, summed over rows and the group's heads. A row that
// saw few keys weighs with the normaliser of these: a key that it did not see may count more than 1, up to 2.
ChoiceCost LastQueries::sum_weights(const KeySource& source, LayerRow at, std::span<const int> heads) {
  const Queries& from = queries_[at.layer];
  const std::vector<int32_t> rows = rows_before(at);
  const int64_t n = std::ssize(rows), group = config_.H / config_.G;
  LookingRows looking(source.model);
  for (const int32_t pos : rows) looking.add(pos, from.q.view().row(pos % rule_.queries));
  looking.find_keys(source.kv, at.layer, heads, at.pos);
  scores_.resize(heads.size());
  for (std::vector<double>& of_head : scores_) of_head.assign(static_cast<size_t>(at.pos), 0);
  std::vector<ColumnSumTask> sums;
  for (size_t i = 0; i < heads.size(); ++i) {
    for (int64_t r = 0; r < n; ++r) {
      const auto kept = from.lse.begin() + (rows[r] % rule_.queries) * config_.H + heads[i] * group;
      std::copy_n(kept, group, looking.lse(i) + r * group);
    }
    sums.push_back({&looking.tasks()[i], scores_[i].data(), false});
  }
  const PreparedModel& model = source.model;
  if (n > 0) model.backend().column_sums(model.attend_shape(source.kv.shape().dtype), sums, source.pool);
  for (std::vector<double>& of_head : scores_) {  // a sort needs an order
    for (double& score : of_head) score = std::isfinite(score) ? score : 0;
  }
  const double keys = static_cast<double>(heads.size()) * at.pos;
  return {2.0 * static_cast<double>(n * group * config_.E) * keys,
          keys * static_cast<double>(source.kv.shape().row_bytes())};
}

std::vector<Runs> LastQueries::choose(const KeySource& from, LayerRow at, const float*, std::span<const int> heads,
                                      ChoiceCost& cost) {
  scores_.resize(heads.size());  // where nobody looks they are not read
  if (!rule_.takes_all(at.layer, config_.L, at.pos)) cost = sum_weights(from, at, heads);
  return choose_side_by_side(from.pool, rule_, at, config_.L, scores_);
}

}  // namespace kvilt
