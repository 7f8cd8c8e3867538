#include "plan/heavy_keys.h"

#include <cmath>

#include "base/check.h"

namespace kvilt {

void HeavyKeys::grow(int64_t keys) {
  if (keys <= std::ssize(sums_)) return;
  sums_.resize(static_cast<size_t>(keys), 0);
  out_.resize(static_cast<size_t>(keys), 0);
}

void HeavyKeys::add(int32_t begin, std::span<const float> weights) {
  grow(begin + std::ssize(weights));
  for (size_t j = 0; j < weights.size(); ++j) sums_[begin + j] += weights[j];
}

std::vector<double> HeavyKeys::scores(int32_t keys) {
  grow(keys);
  std::vector<double> out(sums_.begin(), sums_.begin() + keys);
  for (int32_t j = 0; j < keys; ++j) {
    if (out_[j]) out[j] = -HUGE_VAL;
    if (std::isnan(out[j])) out[j] = 0;  // a sort needs an order
  }
  return out;
}

void HeavyKeys::keep(std::span<const Run> kept, int32_t keys) {
  grow(keys);
  std::vector<uint8_t> in(static_cast<size_t>(keys), 0);
  for (const Run& run : kept) {
    for (int32_t j = run.begin; j < run.end; ++j) {
      CHECK(!out_[j]);
      in[j] = 1;
    }
  }
  for (int32_t j = 0; j < keys; ++j) {
    if (in[j] || out_[j]) continue;
    out_[j] = 1;
    if (!std::isnan(sums_[j])) lost_ += sums_[j];
  }
}

}  // namespace kvilt
