// kv/ghost_list.h: keys of blocks that were evicted, without their KV: whether what is computed was here a while ago.
// Role:    regret. A block that is computed anew soon after it left should have stayed; which ones these are moves the
//          order of eviction (kv/eviction_order.h), and is counted.
// Threads: one owner.
// Cost:    some 40 bytes a key; O(1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "base/step_table.h"

namespace kvilt {

class GhostList {
 public:
  // most: keys of each kind that are remembered; the oldest are forgotten.
  explicit GhostList(size_t most) : most_(most) {}

  // A block left; again: it had been used again before.
  void add(uint64_t key, bool again) {
    if (most_ == 0) return;
    take(key);
    keys_.reserve_one();
    order_[again].emplace_back(key, ++last_);
    keys_.insert(StepTable<Ghost>::mixed(key), {last_ << 1 | (again ? 1 : 0)});
    ++size_[again];
    while (size_[again] > most_) forget_oldest(again);
    while (order_[again].size() > 2 * most_) forget_oldest(again);  // those that were taken leave their places behind
  }
  // Whether the block is remembered, and if so, of which kind it was. It is forgotten then: it is here again.
  std::optional<bool> take(uint64_t key) {
    const Ghost* const ghost = keys_.find(StepTable<Ghost>::mixed(key));
    if (!ghost) return std::nullopt;
    const bool again = (ghost->word & 1) != 0;
    keys_.erase(StepTable<Ghost>::mixed(key));
    --size_[again];
    return again;
  }
  size_t size(bool again) const { return size_[again]; }
  // Ghosts of the other kind over those of this one, counting the one that was just taken.
  double odds(bool again) const { return static_cast<double>(size_[!again]) / static_cast<double>(size_[again] + 1); }
  void clear() { *this = GhostList(most_); }

 private:
  struct Ghost {
    uint64_t word = 0;  // its number, from 1 on, and its kind
    bool empty() const { return word == 0; }
  };
  void forget_oldest(bool again) {
    const auto [key, number] = order_[again].front();
    order_[again].pop_front();
    const Ghost* const ghost = keys_.find(StepTable<Ghost>::mixed(key));
    if (!ghost || ghost->word >> 1 != number) return;
    keys_.erase(StepTable<Ghost>::mixed(key));
    --size_[again];
  }

  size_t most_;
  StepTable<Ghost> keys_;
  std::deque<std::pair<uint64_t, uint64_t>> order_[2];  // key, number; the oldest first
  size_t size_[2] = {0, 0};
  uint64_t last_ = 0;
};

}  // namespace kvilt
