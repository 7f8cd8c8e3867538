#include "plan/page_bounds.h"

#include <algorithm>

#include "base/check.h"

namespace kvilt {

void PageBounds::grow() {
  const int64_t room = std::max<int64_t>(16, room_ + room_ / 2);
  std::vector<float> out(static_cast<size_t>(2 * E_ * room));
  for (int64_t e = 0; e < 2 * E_; ++e) std::copy_n(extremes_.data() + e * room_, room_, out.data() + e * room);
  extremes_ = std::move(out);
  room_ = room;
}

void PageBounds::add(std::span<const float> key) {
  CHECK(std::ssize(key) == E_);
  const bool first = keys_ % page_ == 0;
  const int64_t page = keys_++ / page_;
  if (page == room_) grow();
  float* most = extremes_.data() + page;
  float* least = most + E_ * room_;
  for (int e = 0; e < E_; ++e, most += room_, least += room_) {
    *most = first ? key[e] : std::max(*most, key[e]);
    *least = first ? key[e] : std::min(*least, key[e]);
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
