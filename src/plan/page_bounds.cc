#include "plan/page_bounds.h"

#include <algorithm>

#include "base/check.h"

namespace kvilt {
namespace {

// K keys, E channels each. Loops of one shape along the channels, of which the compiler makes vectors.
template <int K>
void widen_by(const float* keys, int E, float* most, float* least) {
  for (int e = 0; e < E; ++e) {
    float high = most[e], low = least[e];
    for (int k = 0; k < K; ++k) {
      high = std::max(high, keys[k * E + e]);
      low = std::min(low, keys[k * E + e]);
    }
    most[e] = high;
    least[e] = low;
  }
}

}  // namespace

void PageBounds::widen(const float* keys, int32_t count) {
  float *most = open_.data(), *least = most + E_;
  if (keys_ % page_ == 0) {
    std::copy_n(keys, E_, most);
    std::copy_n(keys, E_, least);
  }
  int32_t i = 0;
  for (; i + 4 <= count; i += 4) widen_by<4>(keys + int64_t{i} * E_, E_, most, least);
  for (; i < count; ++i) widen_by<1>(keys + int64_t{i} * E_, E_, most, least);
}

// The page is full.
void PageBounds::close() {
  const int32_t page = keys_ / page_ - 1;
  if (page % kBlock == 0) blocks_.push_back(std::make_unique<float[]>(static_cast<size_t>(2 * E_ * kBlock)));
  float* column = blocks_.back().get() + page % kBlock;
  for (int e = 0; e < 2 * E_; ++e) column[e * kBlock] = open_[e];
}

void PageBounds::add(std::span<const float> keys) {
  CHECK(keys.size() % static_cast<size_t>(E_) == 0);
  auto left = static_cast<int32_t>(std::ssize(keys) / E_);
  for (const float* next = keys.data(); left > 0;) {
    const int32_t count = std::min(left, page_ - keys_ % page_);
    widen(next, count);
    next += int64_t{count} * E_;
    left -= count;
    keys_ += count;
    if (keys_ % page_ == 0) close();
  }
}

void PageBounds::add_query(std::span<const float> q, std::span<float> weights) {
  CHECK(weights.size() == 2 * q.size());
  for (size_t e = 0; e < q.size(); ++e) {
    weights[e] += std::max(q[e], 0.0f);
    weights[q.size() + e] += std::min(q[e], 0.0f);
  }
}

}  // namespace kvilt
