#include "forward/layer_chooser.h"

#include <cmath>

#include "base/check.h"

namespace kvilt {

std::vector<Runs> LayerChooser::choose(const KeySource&, LayerRow at, const float*, std::span<const int> heads,
                                       ChoiceCost&) {
  std::vector<Runs> out;
  for (const int g : heads) {
    Head& head = heads_[g];
    const bool selected = head.done && head.pos == at.pos && head.layer >= rule_.selection_below(at.layer, config_.L);
    if (!selected) head = {at.pos, at.layer, false, {{0, at.pos}}};
    out.push_back(head.keys);
  }
  return out;
}

ChoiceCost LayerChooser::attended(const KeySource& from, const AttendedQueries& rows) {
  std::vector<int> heads;
  for (int g = 0; g < config_.G; ++g) {
    if (!heads_[g].done && heads_[g].layer == rows.layer && heads_[g].pos == rows.pos.front()) heads.push_back(g);
  }
  return heads.empty() ? ChoiceCost() : select(from, rows, heads);
}

// These heads of a row that saw all choose by the weights that it gave, summed over each group.
ChoiceCost LayerChooser::select(const KeySource& from, const AttendedQueries& row, std::span<const int> heads) {
  const int32_t pos = row.pos.front();
  const int64_t group = config_.H / config_.G;
  std::vector<std::vector<double>> scores(heads.size(), std::vector<double>(static_cast<size_t>(pos) + 1, 0));
  std::vector<AttendTask> tasks(heads.size());
  std::vector<ColumnSumTask> sums;
  for (size_t i = 0; i < heads.size(); ++i) {
    AttendTask& task = tasks[i];
    task.q = row.q.row(0) + heads[i] * group * config_.E;
    task.q_stride = row.q.stride;
    task.pos = row.pos;
    task.spans = row.seen[heads[i]]->spans();
    CHECK(row.seen[heads[i]]->size() == pos + 1);  // ranks are positions
    task.lse = row.lse + heads[i] * group;
    sums.push_back({&task, scores[i].data(), false});
  }
  const bool looks = !rule_.takes_all(row.layer, config_.L, pos);
  const PreparedModel& model = from.model;
  if (looks) model.backend().column_sums(model.attend_shape(from.kv.shape().dtype), sums, from.pool);
  for (std::vector<double>& of_head : scores) {
    of_head.pop_back();                                                      // the row sees itself anyway
    for (double& score : of_head) score = std::isfinite(score) ? score : 0;  // a sort needs an order
  }
  std::vector<Runs> keys = choose_side_by_side(from.pool, rule_, {row.layer, pos}, config_.L, scores);
  for (size_t i = 0; i < heads.size(); ++i) {
    heads_[heads[i]].keys = std::move(keys[i]);
    heads_[heads[i]].done = true;
  }
  if (!looks) return {};
  const double read = static_cast<double>(heads.size()) * (pos + 1);
  return {2.0 * static_cast<double>(group * config_.E) * read, read * static_cast<double>(from.kv.shape().row_bytes())};
}

}  // namespace kvilt
