#include "policy/spread_scores.h"

#include <cmath>
#include <vector>

namespace kvilt {
namespace {

// By position, the square of how much contexts change the token, as a share of all such change; < 0: it is not known.
std::vector<double> squared_change(const PromptLayout& layout) {
  double k = 0, v = 0;
  int64_t known = 0;
  for (const TokenSpread& token : layout.spread) {
    if (token.known()) k += token.k, v += token.v, ++known;
  }
  std::vector<double> out(layout.spread.size(), -1);
  if (k <= 0 || v <= 0) return out;  // all contexts were the same
  const double usual = 2 / static_cast<double>(known);
  for (const Run& piece : layout.pieces) {
    double sum = 0;
    for (int32_t pos = piece.begin; pos < piece.end; ++pos) {
      const TokenSpread& token = layout.spread[static_cast<size_t>(pos)];
      if (token.known()) sum += out[static_cast<size_t>(pos)] = token.k / k + token.v / v;
    }
    if (sum < kLeastChange * usual * piece.size()) std::fill_n(out.begin() + piece.begin, piece.size(), -1.0);
  }
  return out;
}

}  // namespace

void weigh_by_spread(const PromptLayout& layout, double power, std::span<double> score) {
  if (power == 0 || layout.spread.empty()) return;
  std::vector<double> change = squared_change(layout);
  double sum = 0;
  int64_t known = 0;
  for (double& x : change) {
    if (x >= 0) sum += x = std::pow(x, power / 2), ++known;
  }
  if (known == 0) return;
  const double usual = sum / static_cast<double>(known);
  for (size_t i = 0; i < score.size(); ++i) {
    const bool is_known = i < change.size() && change[i] >= 0;
    score[i] *= is_known ? change[i] : usual;
  }
}

}  // namespace kvilt
