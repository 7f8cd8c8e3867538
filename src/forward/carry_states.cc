// forward/carry_states.cc: rows that enter a layer with a stored hidden state (plan/plan.h, RowEntry) take the change over
// that their group's rows from below show, as placed K and V do.
// Idea:       what any text in front changes in a state is nearly the same for tokens alike (docs/math/carry.md): of the
//             means of four contexts the gain is .46 to .83, so most of an entering row's error is known.
// Invariants: a row that comes from below is not touched. One whose token has no stored state shows nothing: its change
//             counts as none. Groups come in order, so the result does not depend on the chunk.
// Cost:       2 (m + n) n D operations a group of n rows from below and m that enter.
#include <algorithm>

#include "base/check.h"
#include "forward/annex_rows.h"
#include "forward/carry.h"
#include "kv/annex.h"

namespace kvilt {
namespace {

// The row of `pos` among rising positions; -1: it has none.
int64_t row_of(std::span<const int32_t> positions, int32_t pos) {
  const auto at = std::ranges::lower_bound(positions, pos);
  return at != positions.end() && *at == pos ? at - positions.begin() : -1;
}

// change = by how much the states of these positions differ from the stored ones; 0, and no 1 in the result, where there
// is none.
std::vector<uint8_t> change_of(const EnteringRows& rows, std::span<const int32_t> positions, Mat<float> change) {
  const AnnexKind kind = rows.entry->state;
  const std::span<const Placement> placed = rows.kv->first_placements();
  std::vector<uint8_t> out(positions.size());
  for (size_t s = 0; s < positions.size(); ++s) {
    float* row = change.row(static_cast<int64_t>(s));
    std::fill_n(row, change.cols, 0.0f);
    if (!has_annex_row(placed, kind, positions[s])) continue;
    out[s] = 1;
    read_state(placed, kind, positions[s], {row, static_cast<size_t>(change.cols)});
    const int64_t r = row_of(rows.pos, positions[s]);
    CHECK(r >= 0);
    for (int64_t d = 0; d < change.cols; ++d) row[d] = rows.x.row(r)[d] - row[d];
  }
  return out;
}

}  // namespace

CarryPass::Cost CarryPass::carry_states(const EnteringRows& rows, CarryState& state) const {
  Cost cost;
  const int64_t D = rows.x.cols;
  if (rows.entry->layer() < rows.carry->layer_begin) return cost;
  CarryState::Fit& fit = state.states_[rows.entry->layer()];
  FloatMat changes, sums;
  std::vector<float> weights;
  for (size_t i = 0; i < state.weights_.size(); ++i) {
    const CarryWeights& group = state.weights_[i];
    const Run range = rows.carry->groups[i].range();
    if (group.sources.empty() || range.end <= rows.pos.front() || range.begin > rows.pos.back()) continue;
    const auto n = static_cast<int64_t>(group.sources.size());
    const Mat<float> change = changes.reshape(n, D);
    const std::vector<uint8_t> shows = change_of(rows, group.sources, change);
    if (rows.carry->gain) {
      const Mat<float> predicted = sums.reshape(n, D);
      model_.backend().mix({group.left_out.data(), n, n}, change, predicted);
      for (int64_t s = 0; s < n; ++s) {
        if (shows[s]) fit.add(predicted.row(s), change.row(s), D);
      }
    }
    std::vector<int64_t> entering;
    weights.clear();
    for (size_t u = 0; u < group.targets.size(); ++u) {
      const int32_t pos = group.targets[u];
      if (!contains(rows.entry->rows, pos)) continue;
      entering.push_back(row_of(rows.pos, pos));
      weights.insert(weights.end(), group.w.begin() + static_cast<int64_t>(u) * n,
                     group.w.begin() + static_cast<int64_t>(u + 1) * n);
    }
    const auto m = static_cast<int64_t>(entering.size());
    cost.flops += 2.0 * static_cast<double>((m + (rows.carry->gain ? n : 0)) * n * D);
    if (m == 0) continue;
    const Mat<float> sum = sums.reshape(m, D);
    model_.backend().mix({weights.data(), m, n}, change, sum);
    const float gain = rows.carry->gain ? fit.gain() : 1;
    for (int64_t u = 0; u < m; ++u) {
      float* x = rows.x.row(entering[u]);
      for (int64_t d = 0; d < D; ++d) x[d] += gain * sum.row(u)[d];
    }
  }
  return cost;
}

}  // namespace kvilt
