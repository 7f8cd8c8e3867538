#include "plan/heavy_keys.h"

#include <cmath>

#include "base/check.h"

namespace kvilt {

void HeavyKeys::grow(int32_t keys) {
  if (keys <= keys_) return;
  if (in_.empty() || in_.back().end < keys_) in_.push_back({keys_, keys_});
  in_.back().end = keys;
  sums_.resize(sums_.size() + static_cast<size_t>(keys - keys_), 0);
  keys_ = keys;
}

void HeavyKeys::add(int32_t keys, std::span<const float> weights) {
  grow(keys);
  const bool all = std::ssize(sums_) == keys_;  // rows of the prompt may see less than rows before them did
  CHECK(all ? std::ssize(weights) == keys : weights.size() == sums_.size());
  for (size_t rank = 0; rank < weights.size(); ++rank) sums_[rank] += weights[rank];
}

std::vector<double> HeavyKeys::scores(int32_t keys) {
  grow(keys);
  CHECK(keys_ == keys);
  std::vector<double> out = sums_;
  for (double& score : out) score = std::isnan(score) ? 0 : score;  // a sort needs an order
  return out;
}

Runs HeavyKeys::keep(const Runs& ranks) {
  Runs kept;
  size_t left = 0;   // how many stay
  int32_t rank = 0;  // of the next key
  const auto drop_until = [&](int32_t end) {
    for (; rank < end; ++rank) lost_ += std::isnan(sums_[rank]) ? 0 : sums_[rank];
  };
  auto stays = ranks.begin();
  int32_t first = 0;  // the rank of the run's first key
  for (const Run& run : in_) {
    const int32_t end = first + run.size();
    for (; stays != ranks.end() && stays->begin < end; ++stays) {
      const Run part{std::max(stays->begin, first), std::min(stays->end, end)};
      drop_until(part.begin);
      kept.push_back({run.begin + part.begin - first, run.begin + part.end - first});
      for (; rank < part.end; ++rank) sums_[left++] = sums_[rank];
      if (stays->end > end) break;
    }
    drop_until(end);
    first = end;
  }
  sums_.resize(left);
  in_ = kept;
  return kept;
}

}  // namespace kvilt
