#include "forward/ffn_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace kvilt {
namespace {

double norm(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{x[i]} * x[i];
  return std::sqrt(sum);
}

// A number that looks random, of (seed, layer, pos).
uint64_t mixed(uint64_t seed, int layer, int32_t pos) {
  uint64_t x = seed * 0x9e3779b97f4a7c15ull + (static_cast<uint64_t>(layer) << 32) + static_cast<uint64_t>(pos);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Marks those of a block's rows [begin, end) that hold the mass: how many, and in which order, the rule says.
void choose_block(const FfnRule& rule, const FfnRows& rows, size_t begin, size_t end, uint8_t* runs) {
  const double mass = rule.mass_at(rows.layer);
  std::vector<double> score(end - begin);
  double total = 0;
  for (size_t r = begin; r < end; ++r) {
    const auto row = static_cast<int64_t>(r);
    double value;
    if (rule.by == FfnRule::By::kResidual) {
      const double length = norm(rows.residual.row(row), rows.residual.cols);
      value = length > 0 ? 1 / length : 0;
    } else {
      value = norm(rows.attended.row(row), rows.attended.cols);
    }
    score[r - begin] = value;
    total += value;
  }
  if (rule.takes_all(rows.layer, rows.experts) || !(total > 0)) return std::fill(runs + begin, runs + end, uint8_t{1});
  std::vector<size_t> order(score.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return score[a] > score[b]; });
  size_t taken = 0;
  const bool by_threshold = rows.experts && rule.expert_threshold > 0;
  const double least = rule.expert_threshold * total / static_cast<double>(score.size());
  while (by_threshold && taken < order.size() && score[order[taken]] >= least) ++taken;
  for (double sum = 0; !by_threshold && taken < order.size(); ++taken) {
    sum += score[order[taken]];
    if (sum >= mass * total) break;  // the row that crosses is out, as in the published code
  }
  taken = std::max<size_t>(1, taken);
  if (rule.by == FfnRule::By::kRandom) {
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return mixed(rule.seed, rows.layer, rows.pos[begin + a]) < mixed(rule.seed, rows.layer, rows.pos[begin + b]);
    });
  }
  std::fill(runs + begin, runs + end, uint8_t{0});
  for (size_t i = 0; i < taken; ++i) runs[begin + order[i]] = 1;
}

}  // namespace

void choose_ffn_rows(const FfnRule& rule, const FfnRows& rows, uint8_t* runs) {
  const auto of_prompt = std::lower_bound(rows.pos.begin(), rows.pos.end(), rule.answer);
  const auto n = static_cast<size_t>(of_prompt - rows.pos.begin());
  std::fill(runs + n, runs + rows.pos.size(), uint8_t{1});
  for (size_t begin = 0, end = 0; begin < n; begin = end) {
    const auto kind = [&](size_t r) {
      return std::pair(rows.pos[r] / kFfnBlock, contains(rows.only_look, rows.pos[r]));
    };
    while (end < n && kind(end) == kind(begin)) ++end;
    choose_block(rule, rows, begin, end, runs);
  }
  for (size_t r = n; r-- > 0 && rows.pos[r] >= std::min(rows.prompt_len, rule.answer) - rule.recent;) runs[r] = 1;
}

}  // namespace kvilt
