// apps/bench/scale_store.h: the simulated Redis: which blocks are in it, since when, and what leaves when it is full.
// Idea:       a block can be read from some time on: it was computed, written and announced by then. Who computes a block
//             that is not announced yet writes it again (docs/design/redis.md#out), and both copies take room. What was
//             neither written nor read for the longest time leaves first, as volatile-lru approximates. A piece, what one
//             request wrote, is counted while a block of it is there.
// Invariants: a block is found only after it was put. held() is what was put less what left.
// Threads:    one. Cost: O(1), some 100 bytes a block that it holds.
// Not here:   bytes and rates (scale_fleet.h); times to live, which are longer than any trace.
#pragma once

#include <cstdint>
#include <iterator>
#include <list>
#include <unordered_map>
#include <vector>

namespace kvilt {

class SharedStore {
 public:
  // most: blocks; 0: no bound.
  explicit SharedStore(int64_t most) : most_(most) {}

  // pending: another put it, and nobody else knows yet; own: who asks did.
  enum class State : uint8_t { kMissing, kAnnounced, kPending, kOwn };
  State state(uint64_t block, uint16_t asks, double at) const {
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) return State::kMissing;
    const Put& by = found->second->by;
    if (by.from <= at) return State::kAnnounced;
    return by.server == asks ? State::kOwn : State::kPending;
  }

  uint64_t new_piece() {
    pieces_left_.push_back(0);
    return pieces_left_.size() - 1;
  }
  struct Put {
    uint16_t server = 0;
    uint64_t piece = 0;
    double from = 0;  // when others know it
  };
  // What is there is put a second time: both copies stay until the first leaves.
  void put(uint64_t block, const Put& by) {
    ++put_;
    if (const auto found = blocks_.find(block); found != blocks_.end()) {
      ++found->second->copies;
    } else {
      order_.push_back({block, by, 1});
      blocks_.emplace(block, std::prev(order_.end()));
      if (pieces_left_[by.piece]++ == 0) ++pieces_;
    }
    ++held_;
    while (most_ > 0 && held_ > most_) drop_oldest();
  }
  // REQUIRES: it is there.
  void read(uint64_t block) { order_.splice(order_.end(), order_, blocks_.at(block)); }

  int64_t held() const { return held_; }  // copies
  int64_t put() const { return put_; }
  int64_t dropped() const { return dropped_; }
  int64_t pieces() const { return pieces_; }

 private:
  struct Entry {
    uint64_t block = 0;
    Put by;
    int64_t copies = 0;
  };
  void drop_oldest() {
    const Entry& oldest = order_.front();
    held_ -= oldest.copies;
    dropped_ += oldest.copies;
    if (--pieces_left_[oldest.by.piece] == 0) --pieces_;
    blocks_.erase(oldest.block);
    order_.pop_front();
  }

  const int64_t most_;
  std::list<Entry> order_;  // the least recently used first
  std::unordered_map<uint64_t, std::list<Entry>::iterator> blocks_;
  std::vector<uint32_t> pieces_left_;  // blocks of each
  int64_t held_ = 0, put_ = 0, dropped_ = 0, pieces_ = 0;
};

}  // namespace kvilt
