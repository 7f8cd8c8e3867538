#include "base/divergence.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/exp_small.h"
#include "base/highest.h"

namespace kvilt {
namespace {

// Loops over kLanes independent sums: the compiler makes vectors of them without changing the order of a sum.
constexpr size_t kLanes = 16;
constexpr float kFloor = -1e30f;

// Sum of f(i) over [0, n): kLanes float sums, flushed into a double every 4,096 elements.
template <class F>
double sum_over(size_t n, F f) {
  double total = 0;
  size_t i = 0;
  while (i + kLanes <= n) {
    float lanes[kLanes] = {};
    const size_t end = std::min(n / kLanes * kLanes, i + 4096);
    for (; i < end; i += kLanes) {
      for (size_t l = 0; l < kLanes; ++l) lanes[l] += f(i + l);
    }
    for (const float lane : lanes) total += double{lane};
  }
  for (; i < n; ++i) total += double{f(i)};
  return total;
}

inline float above_floor(float x) { return x > kFloor ? x : kFloor; }

}  // namespace

double log_sum_exp(std::span<const float> logits) {
  const float most = highest(logits, kFloor);
  const float* x = logits.data();
  return std::log(sum_over(logits.size(), [&](size_t i) { return exp_small(above_floor(x[i]) - most); })) +
         double{most};
}

int32_t most_likely(std::span<const float> logits) {
  // The largest of each block; then its place in the first block that has the largest of all.
  constexpr size_t kBlock = 1024;
  float most = logits[0];
  size_t begin = 0;
  for (size_t at = 0; at < logits.size(); at += kBlock) {
    const float here = highest(logits.subspan(at, std::min(kBlock, logits.size() - at)), most);
    if (here > most) {
      most = here;
      begin = at;
    }
  }
  while (begin < logits.size() && logits[begin] != most) ++begin;
  return begin < logits.size() ? static_cast<int32_t>(begin) : 0;  // logits[0] may be NaN, which equals nothing
}

Reference::Reference(std::vector<float> logits) : logits_(std::move(logits)), weights_(logits_.size()) {
  for (float& x : logits_) x = above_floor(x);
  total_ = log_sum_exp(logits_);
  top_ = most_likely(logits_);
  const auto total = static_cast<float>(total_);
  for (size_t i = 0; i < logits_.size(); ++i) weights_[i] = exp_small(std::min(0.f, logits_[i] - total));
  weight_sum_ = sum_over(weights_.size(), [&](size_t i) { return weights_[i]; });
}

double Reference::kl(std::span<const float> method) const {
  CHECK(method.size() == logits_.size());
  const float *p = weights_.data(), *f = logits_.data(), *m = method.data();
  const double mean =
      sum_over(method.size(), [&](size_t i) { return p[i] * (f[i] - above_floor(m[i])); }) / weight_sum_;
  return std::max(0.0, mean + log_sum_exp(method) - total_);
}

}  // namespace kvilt
