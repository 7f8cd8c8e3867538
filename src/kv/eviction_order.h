// kv/eviction_order.h: in which order what waits is evicted. A policy by itself: extents wait in it, and so do the blocks
// of a trace (apps/bench/bench_eviction.cc), so that what is measured is what runs.
// Idea:       two lists, each the least recently used first: what was used once, and what was used again since it was
//             made. kLru: one list. kSegmented: those used again may hold 0.8 of the pages; what they exceed goes back to
//             the first list. kAdaptive: what used-once things may hold is a share that moves, from those 0.2 on: where
//             something that was evicted from one of the lists is wanted again, that list should have been longer.
// Source:     SLRU: Karedla, Love, Wherry, "Caching strategies to improve disk system performance" (1994). The moving
//             share: ARC, Megiddo and Modha (FAST 2003), here in pages, with ghosts that the owner keeps
//             (kv/ghost_list.h). Measured: docs/results/eviction.md.
// Invariants: what waits is in one list; pages() is their sum.
// Threads:    one owner. Waiting allocates nothing.
// Cost:       O(1).
#pragma once

#include <cstdint>
#include <list>

namespace kvilt {

class EvictionOrder;

// Something that can wait. The owner has it as a base or a member, and keeps it in place.
class Evictable {
 public:
  Evictable() : place_{this} {}
  Evictable(const Evictable&) = delete;
  Evictable& operator=(const Evictable&) = delete;
  bool waits() const { return waits_; }
  bool again = false;  // it was used again, or made anew soon after it was evicted

 private:
  friend class EvictionOrder;
  std::list<Evictable*>::iterator at_;
  std::list<Evictable*> place_;  // its node, while it does not wait
  int64_t pages_ = 0;
  uint64_t since_ = 0;
  int list_ = 0;
  bool waits_ = false;
};

class EvictionOrder {
 public:
  enum class Rule : uint8_t { kLru, kSegmented, kAdaptive };
  explicit EvictionOrder(Rule rule) : rule_(rule) {}

  int64_t pages() const { return pages_[0] + pages_[1]; }
  // It waits from now on, with so many pages, as the most recently used of its list. now: a clock of the owner.
  void enter(Evictable& item, int64_t pages, uint64_t now);
  void leave(Evictable& item);                  // REQUIRES: it waits
  void add_pages(Evictable& item, int64_t by);  // REQUIRES: it waits
  // The next to be evicted; null: nothing waits.
  Evictable* next() const;
  uint64_t since(const Evictable& item) const { return item.since_; }

  // So many pages that were evicted are wanted again. of_again: they had been used again. odds: ghosts of the other kind
  // over ghosts of this one.
  void missed(int64_t pages, bool of_again, double odds);
  double share() const { return share_; }  // of the pages: what things used once may hold, beyond 1 - kProtected

 private:
  static constexpr double kProtected = 0.8;  // of kSegmented's pages
  void put(Evictable& item, int list);
  Rule rule_;
  std::list<Evictable*> lists_[2];  // used once; used again
  int64_t pages_[2] = {0, 0};
  double share_ = 0;
};

}  // namespace kvilt
