#include "policy/spread_scores.h"

#include <cmath>

namespace kvilt {

void weigh_by_spread(const PromptLayout& layout, double power, std::span<double> score) {
  if (power == 0) return;
  double k = 0, v = 0;
  for (const TokenSpread& token : layout.spread) {
    if (token.known()) k += token.k, v += token.v;
  }
  if (k <= 0 || v <= 0) return;  // the contexts were the same
  const auto change = [&](const TokenSpread& token) { return std::pow(token.k / k + token.v / v, power / 2); };
  double sum = 0;
  int64_t known = 0;
  for (const TokenSpread& token : layout.spread) {
    if (token.known()) sum += change(token), ++known;
  }
  const double usual = sum / static_cast<double>(known);
  for (size_t i = 0; i < score.size(); ++i) {
    const bool is_known = i < layout.spread.size() && layout.spread[i].known();
    score[i] *= is_known ? change(layout.spread[i]) : usual;
  }
}

}  // namespace kvilt
