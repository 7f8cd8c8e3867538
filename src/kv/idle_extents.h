// kv/idle_extents.h: which of the extents that nobody uses is evicted next: whose, and of what kind.
// Idea:       extents belong to owners (tenants). Owners that have a share of the pool wait in a line of their own, all
//             others together in one, whose share is what is left. Whoever holds more than its share gives way first;
//             what nobody else needs is lent. Within a line the kinds give way one after the other: ordinary (in the
//             order of kv/eviction_order.h), pinned for a time, frozen. Nothing here is kept at any price: requests
//             that run need room, and take the frozen too when nothing else is left.
// Pinned:     for some minutes or hours from its last use on; then it is ordinary. The pins of a line may hold half of its
//             share, those of one of several owners a quarter: what is beyond that waits as ordinary.
// Frozen:     until it is thawed, or until a line's frozen extents fill nine tenths of its share: then those with the
//             fewest uses become ordinary. Uses are told apart by powers of two. Where tenants are known that have no
//             share, one of them has half of their line frozen at most, and its own become ordinary beyond that.
// Invariants: while an extent of an owner above its share waits, none of an owner that is not leaves. What an owner has
//             pinned or frozen depends on nobody in another line. Without shares, pins and frozen texts the order is that
//             of EvictionOrder alone (docs/results/eviction.md).
// Threads:    one owner, the engine thread.
// Cost:       O(1) but for one look at each line per eviction, and at each of its owners where only frozen texts are left.
//             Waiting allocates nothing.
// Not here:   who asks for pins and frozen texts (engine/retention.cc).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "kv/eviction_order.h"
#include "kvilt/retention.h"

namespace kvilt {

class Extent;

// Whose extents. 0: nobody's in particular; its line is that of all who have no share.
using OwnerId = uint32_t;

class IdleExtents {
 public:
  // With KV for any prompt, or only to continue one conversation (a chain). Chains leave first while they hold more pages
  // than the others do, so that conversations that nobody goes on with do not push out what everybody reads.
  enum class Order : uint8_t { kPieces, kChains };
  // How far whoever wants room may go. What nobody waits for takes ordinary extents, of its owner's line and of those
  // that hold more than their share.
  enum class Reach : uint8_t { kOrdinary, kAll };
  using Seconds = std::function<int64_t()>;  // a clock that does not go back

  // Of the pages of a line's share; ByOne: an owner's, in the line of those that have no share. Of frozen ones that counts
  // while another tenant is known there.
  static constexpr double kMostFrozen = .9, kMostFrozenByOne = .5, kMostPinned = .5, kMostPinnedByOne = .25;

  explicit IdleExtents(int64_t pool_pages);
  void set_clock(Seconds clock) { clock_ = std::move(clock); }

  // A new owner. share: of the pool's pages, above 0; 0: it has none. REQUIRES: all shares together are 1 at most.
  OwnerId add_owner(double share);

  int64_t pages() const { return idle_; }  // all that wait
  // The same within this owner's reach.
  int64_t pages(OwnerId wanted_by, Reach reach) const;
  // The next to be evicted for this owner's sake; null: there is none.
  Extent* next(OwnerId wanted_by = 0, Reach reach = Reach::kAll) const;
  // What was pinned and has waited for its time becomes ordinary.
  void end_pins();
  // Of what was evicted of this owner's extents, so many pages are wanted again: see EvictionOrder::missed.
  void missed(OwnerId owner, int64_t pages, bool of_again, double odds);

  // Pages of an owner's extents, those in use included; and of those that wait, the pinned ones.
  int64_t held_by(OwnerId owner) const { return owners_[owner].held; }
  int64_t pinned_by(OwnerId owner) const { return owners_[owner].pinned; }
  int64_t frozen_by(OwnerId owner) const { return owners_[owner].frozen; }  // of those that wait
  int64_t share_of(OwnerId owner) const;  // in pages; of one that has none: what is left to all such
  int64_t own_share(OwnerId owner) const { return owners_[owner].line > 0 ? share_of(owner) : 0; }
  int64_t pinned() const { return pinned_; }
  int64_t frozen() const { return frozen_; }  // those in use included

 private:
  friend class Extent;
  static constexpr size_t kPins = 3, kUses = 8;
  enum class Kind : uint8_t { kOrdinary, kPinned, kFrozen };
  using Orders = std::deque<EvictionOrder>;  // each the least recently used first
  struct Line {
    EvictionOrder ordinary[2] = {EvictionOrder(EvictionOrder::Rule::kAdaptive),
                                 EvictionOrder(EvictionOrder::Rule::kLru)};
    Orders pins;                                                    // by retention
    int64_t share = 0, held = 0, idle = 0, pinned = 0, frozen = 0;  // pages; from idle on of what waits
    std::vector<OwnerId> owners;
    Line();
    Extent* next_ordinary() const;
    Extent* next_pinned() const;
    int64_t pages(Reach reach) const;               // that wait within reach
    bool beyond(int64_t pages, double part) const;  // of its share
  };
  struct Owner {
    size_t line = 0;
    Orders by_uses;  // what is frozen
    int64_t held = 0, pinned = 0, frozen = 0;
    explicit Owner(size_t its_line);
    size_t least_used() const;  // the first of by_uses in which something waits; kUses: nothing does
  };

  // For extents. held: it has so many pages more. waits: the same of one that waits.
  void held(OwnerId owner, int64_t by);
  void waiting(Extent& extent, int64_t by);
  void enter(Extent& extent);
  void leave(Extent& extent);
  EvictionOrder& order_for(Extent& extent);
  void add_to(size_t line);
  Extent* next_of(const Line& line) const;
  const Line* furthest_beyond(Reach reach) const;
  const Line* fullest() const;
  Extent* next_frozen(const Line& line) const;
  bool has_others(OwnerId owner) const;
  void let_some_go(OwnerId owner);  // frozen ones, where it has too many

  int64_t pool_;
  Seconds clock_;
  std::deque<Line> lines_;  // deques: extents point into them
  std::deque<Owner> owners_;
  int64_t idle_ = 0, pinned_ = 0, frozen_ = 0;
  uint64_t uses_ = 0;  // a clock that counts
};

}  // namespace kvilt
