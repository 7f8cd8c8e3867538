// engine/fair_line.h: what waits for idle time, taking turns by tenant: one's large base keeps nobody else's from its turn.
// Invariants: what waits is bounded. In a full line the tenant that has most gives up its last one for another's that has
//             two or more less. Of one tenant the order of arrival holds.
// Threads:    the engine thread.
// Cost:       linear in what waits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>

#include "kv/idle_extents.h"

namespace kvilt {

// Work: has an `owner`.
template <class Work>
class FairLine {
 public:
  explicit FairLine(size_t most) : most_(most) {}

  bool empty() const { return waiting_.empty(); }
  size_t size() const { return waiting_.size(); }
  auto begin() const { return waiting_.begin(); }
  auto end() const { return waiting_.end(); }

  // For one more of this tenant's. elsewhere: what counts as waiting, and is not in the line.
  bool has_room(OwnerId owner, size_t elsewhere = 0) const {
    return size() + elsewhere < most_ || most_of_one().second > of(owner) + 1;
  }
  // REQUIRES: has_room(), or it was in the line before.
  void push(Work work) {
    if (const auto [owner, count] = most_of_one(); size() >= most_ && count > of(work.owner) + 1) {
      const auto last =
          std::find_if(waiting_.rbegin(), waiting_.rend(), [owner = owner](const Work& w) { return w.owner == owner; });
      waiting_.erase(std::prev(last.base()));
    }
    waiting_.push_back(std::move(work));
  }
  // Of the tenant whose turn is longest ago. REQUIRES: it is not empty.
  Work pop() {
    const auto next = std::ranges::min_element(waiting_, {}, [&](const Work& work) { return turns_[work.owner]; });
    Work out = std::move(*next);
    waiting_.erase(next);
    turns_[out.owner] = ++last_turn_;
    return out;
  }
  void clear() { waiting_.clear(); }

 private:
  size_t of(OwnerId owner) const { return static_cast<size_t>(std::ranges::count(waiting_, owner, &Work::owner)); }
  std::pair<OwnerId, size_t> most_of_one() const {
    std::map<OwnerId, size_t> counts;
    for (const Work& work : waiting_) ++counts[work.owner];
    const auto most = std::ranges::max_element(counts, {}, [](const auto& one) { return one.second; });
    return most == counts.end() ? std::pair<OwnerId, size_t>{} : std::pair<OwnerId, size_t>(*most);
  }

  const size_t most_;
  std::deque<Work> waiting_;
  std::unordered_map<OwnerId, uint64_t> turns_;  // as many as there are owners (ContentCache::kMostOwners)
  uint64_t last_turn_ = 0;
};

}  // namespace kvilt
