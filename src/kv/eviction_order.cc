#include "kv/eviction_order.h"

#include <algorithm>

#include "base/check.h"

namespace kvilt {

void EvictionOrder::put(Evictable& item, int list) {
  item.list_ = list;
  lists_[list].splice(lists_[list].end(), item.place_, item.place_.begin());
  item.at_ = std::prev(lists_[list].end());
  pages_[list] += item.pages_;
}

void EvictionOrder::enter(Evictable& item, int64_t pages, uint64_t now) {
  CHECK(!item.waits_);
  item.waits_ = true;
  item.pages_ = pages;
  item.since_ = now;
  put(item, rule_ != Rule::kLru && item.again ? 1 : 0);
  while (rule_ == Rule::kSegmented &&
         static_cast<double>(pages_[1]) > kProtected * static_cast<double>(this->pages()) && lists_[1].size() > 1) {
    Evictable& oldest = *lists_[1].front();
    leave(oldest);
    oldest.waits_ = true;
    put(oldest, 0);
  }
}

void EvictionOrder::leave(Evictable& item) {
  CHECK(item.waits_);
  item.place_.splice(item.place_.end(), lists_[item.list_], item.at_);
  pages_[item.list_] -= item.pages_;
  item.waits_ = false;
}

void EvictionOrder::add_pages(Evictable& item, int64_t by) {
  CHECK(item.waits_);
  item.pages_ += by;
  pages_[item.list_] += by;
}

Evictable* EvictionOrder::next() const {
  if (lists_[0].empty() || lists_[1].empty()) {
    const auto& list = lists_[lists_[0].empty() ? 1 : 0];
    return list.empty() ? nullptr : list.front();
  }
  // What was used once always has the room that kSegmented leaves it: else what came last would be the next to leave.
  const double share = std::max(share_, 1 - kProtected);
  const bool once = rule_ != Rule::kAdaptive || static_cast<double>(pages_[0]) > share * static_cast<double>(pages());
  return lists_[once ? 0 : 1].front();
}

void EvictionOrder::missed(int64_t pages, bool of_again, double odds) {
  const double by =
      static_cast<double>(pages) * std::max(1.0, odds) / static_cast<double>(std::max<int64_t>(1, this->pages()));
  share_ = std::clamp(share_ + (of_again ? -by : by), 0.0, 1.0);
}

}  // namespace kvilt
