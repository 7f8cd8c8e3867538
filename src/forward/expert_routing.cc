#include "forward/expert_routing.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvilt {

void ExpertRouting::route(Mat<const float> logits, int top_k, bool renormalise) {
  const auto experts = static_cast<int>(logits.cols);
  CHECK(top_k >= 1 && top_k <= experts);
  choices_.clear();
  first_.assign(static_cast<size_t>(experts) + 1, 0);
  for (int64_t r = 0; r < logits.rows; ++r) {
    const float* row = logits.row(r);
    const size_t begin = choices_.size();
    for (int e = 0; e < experts; ++e) {  // sorted by falling logit; equal ones in the order of the experts
      size_t at = choices_.size();
      if (at == begin + static_cast<size_t>(top_k)) {
        if (!(row[e] > choices_.back().weight)) continue;
        --at;
      } else {
        choices_.push_back({});
      }
      for (; at > begin && row[e] > choices_[at - 1].weight; --at) choices_[at] = choices_[at - 1];
      choices_[at] = {e, row[e]};
    }
    const std::span<Choice> chosen = std::span(choices_).subspan(begin);
    const float most = chosen[0].weight;
    double sum = 0;
    if (!renormalise) {
      for (int e = 0; e < experts; ++e) sum += std::exp(row[e] - most);
    }
    for (Choice& choice : chosen) {
      choice.weight = std::exp(choice.weight - most);
      if (renormalise) sum += choice.weight;
      ++first_[choice.expert + 1];
    }
    for (Choice& choice : chosen) choice.weight = static_cast<float>(choice.weight / sum);
  }
  for (size_t e = 1; e < first_.size(); ++e) first_[e] += first_[e - 1];
  routed_.resize(choices_.size());
  // Filled from the ends, rows backwards, so that first_ ends up where it began.
  for (size_t i = choices_.size(); i-- > 0;) {
    const Choice& choice = choices_[i];
    routed_[--first_[choice.expert + 1]] = {static_cast<int64_t>(i) / top_k, choice.weight};
  }
  // Now first_[e + 1] is where e begins.
  std::rotate(first_.begin(), first_.begin() + 1, first_.end());
  first_.back() = static_cast<int64_t>(routed_.size());
}

const BatchRows& select_routed(const BatchRows& from, std::span<const RoutedRow> routed, BatchRows& out) {
  out.clear();
  size_t next = 0;
  for (size_t c = 0; c + 1 < from.first.size(); ++c) {
    for (; next < routed.size() && routed[next].row < from.first[c + 1]; ++next) {
      out.push(from.pos[routed[next].row], routed[next].row);
    }
    out.first.push_back(out.size());
  }
  out.all = out.size() == from.size();
  return out;
}

}  // namespace kvilt
