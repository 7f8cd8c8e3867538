#include "policy/samkv_stats.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvilt {
namespace {

constexpr size_t kSums = 3;

// Sums of log x and of (log x)^2 over distances 1 .. n, for every n below `tokens`.
struct LogSums {
  explicit LogSums(int32_t tokens) : one(static_cast<size_t>(tokens)), two(static_cast<size_t>(tokens)) {
    for (int32_t n = 1; n < tokens; ++n) {
      const double x = std::log(static_cast<double>(n));
      one[n] = one[n - 1] + x;
      two[n] = two[n - 1] + x * x;
    }
  }
  std::vector<double> one, two;
};

}  // namespace

AttentionStats attention_stats(std::span<const double> fade, const BlockCut& cut) {
  const auto tokens = static_cast<int32_t>(fade.size() / kSums);
  const Run middle = cut.middle(tokens);
  CHECK(middle.size() > 0);
  const LogSums logs(tokens);
  const auto mean = [&](int32_t t) { return fade[t * kSums] / (tokens - 1 - t); };  // middle tokens have later ones
  const auto alpha = [&](int32_t t) {
    const double n = tokens - 1 - t, x = logs.one[tokens - 1 - t], xx = logs.two[tokens - 1 - t];
    const double y = fade[t * kSums + 1], xy = fade[t * kSums + 2], spread = n * xx - x * x;
    return spread > 0 ? -(n * xy - x * y) / spread : HUGE_VAL;
  };
  AttentionStats out;
  double slowest = HUGE_VAL, least = HUGE_VAL;
  for (int32_t b = middle.begin; b < middle.end; ++b) {
    const Run of = cut.tokens_of(b, tokens);
    int32_t best = of.begin;
    for (int32_t t = of.begin; t < of.end; ++t) {
      if (mean(t) > mean(best)) best = t;
    }
    if (const double fades = alpha(best); out.max_block < 0 || fades < slowest) {
      slowest = fades;
      out.max_block = b;
    }
    if (out.min_block < 0 || mean(best) < least) {
      least = mean(best);
      out.min_block = b;
    }
  }
  const int32_t first = middle.begin * cut.block, end = middle.end * cut.block;
  double sum = 0, square = 0;
  for (int32_t t = first; t < end; ++t) {
    sum += mean(t);
    square += mean(t) * mean(t);
  }
  const double n = end - first, average = sum / n, sigma = std::sqrt(std::max(0.0, square / n - average * average));
  std::vector<int32_t> outliers;
  for (int32_t t = first; t < end; ++t) {
    if (mean(t) > average + 3 * sigma) outliers.push_back(t);
  }
  out.outliers = runs_of(outliers);
  return out;
}

}  // namespace kvilt
