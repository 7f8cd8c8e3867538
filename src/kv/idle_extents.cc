#include "kv/idle_extents.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>

#include "base/check.h"
#include "kv/extent.h"

namespace kvilt {
namespace {

constexpr int64_t kRetained[] = {0, 5 * 60, 60 * 60, 24 * 60 * 60};  // seconds, by Retention

int64_t steady_seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

Extent* extent_of(Evictable* item) { return static_cast<Extent*>(item); }

}  // namespace

IdleExtents::Line::Line() {
  for (int i = 0; i < kPins; ++i) pinned.emplace_back(EvictionOrder::Rule::kLru);
  for (int i = 0; i < kUses; ++i) frozen.emplace_back(EvictionOrder::Rule::kLru);
}

IdleExtents::IdleExtents(int64_t pool_pages) : pool_(pool_pages), clock_(steady_seconds) {
  lines_.emplace_back().share = pool_pages;
  owners_.emplace_back();
}

OwnerId IdleExtents::add_owner(double share) {
  size_t line = 0;
  if (share > 0) {
    line = lines_.size();
    const auto pages = static_cast<int64_t>(std::llround(share * static_cast<double>(pool_)));
    lines_.emplace_back().share = std::min(lines_[0].share, pages);
    lines_[0].share -= lines_.back().share;
  }
  owners_.push_back({line});
  return static_cast<OwnerId>(owners_.size() - 1);
}

int64_t IdleExtents::share_of(OwnerId owner) const { return lines_[owners_[owner].line].share; }

// Of the two orders' next the one that waits longer.
Extent* IdleExtents::Line::next_ordinary() const {
  Evictable *const piece = ordinary[0].next(), *const chain = ordinary[1].next();
  if (!piece || !chain) return extent_of(piece ? piece : chain);
  const bool chains_first =
      ordinary[1].pages() > ordinary[0].pages() || ordinary[1].since(*chain) < ordinary[0].since(*piece);
  return extent_of(chains_first ? chain : piece);
}

// The one whose time is over first.
Extent* IdleExtents::Line::next_pinned() const {
  Extent* first = nullptr;
  for (const EvictionOrder& order : pinned) {
    Extent* const next = extent_of(order.next());
    if (next && (!first || next->pinned_until_ < first->pinned_until_)) first = next;
  }
  return first;
}

Extent* IdleExtents::Line::next_frozen() const {
  for (const EvictionOrder& order : frozen) {
    if (Evictable* const next = order.next()) return extent_of(next);
  }
  return nullptr;
}

Extent* IdleExtents::Line::next() const {
  if (Extent* const next = next_ordinary()) return next;
  if (Extent* const next = next_pinned()) return next;
  return next_frozen();
}

// Where nobody holds more than its share and yet there is no room, it is the asking owner that is about to: the shares
// make up the pool. If it has nothing that waits, what it runs goes before what others only keep.
Extent* IdleExtents::next(OwnerId wanted_by) const {
  const Line& own = lines_[owners_[wanted_by].line];
  const Line* from = own.idle > 0 ? &own : nullptr;
  int64_t most_beyond = 0;
  const Line* fullest = nullptr;
  const auto fill = [](const Line& line) {
    return static_cast<double>(line.held) / static_cast<double>(std::max<int64_t>(1, line.share));
  };
  for (const Line& line : lines_) {
    if (line.idle == 0) continue;
    if (line.held - line.share > most_beyond) {
      most_beyond = line.held - line.share;
      from = &line;
    }
    if (!fullest || fill(line) > fill(*fullest)) fullest = &line;
  }
  if (!from) from = fullest;
  return from ? from->next() : nullptr;
}

void IdleExtents::missed(OwnerId owner, int64_t pages, bool of_again, double odds) {
  lines_[owners_[owner].line].ordinary[0].missed(pages, of_again, odds);
}

void IdleExtents::held(OwnerId owner, int64_t by) {
  owners_[owner].held += by;
  lines_[owners_[owner].line].held += by;
}

// The sums over what waits.
void IdleExtents::waiting(Extent& extent, int64_t by) {
  idle_ += by;
  lines_[owners_[extent.owner_].line].idle += by;
  if (extent.kind_ == Kind::kPinned) {
    pinned_ += by;
    owners_[extent.owner_].pinned += by;
  }
  if (extent.kind_ == Kind::kFrozen) frozen_idle_ += by;
}

EvictionOrder& IdleExtents::order_for(Extent& extent) {
  Line& line = lines_[owners_[extent.owner_].line];
  if (extent.frozen()) {
    extent.kind_ = Kind::kFrozen;
    return line.frozen[std::min(static_cast<int>(std::bit_width(extent.uses_)), kUses - 1)];
  }
  const auto within = [&](int64_t pinned, double share) {
    return static_cast<double>(pinned + extent.pages()) <= share * static_cast<double>(pool_);
  };
  const bool pinned = extent.retention_ != Retention::kNone && within(pinned_, kMostPinned) &&
                      within(owners_[extent.owner_].pinned, kMostPinnedByOne);
  if (pinned) {
    extent.kind_ = Kind::kPinned;
    extent.pinned_until_ = clock_() + kRetained[static_cast<int>(extent.retention_)];
    return line.pinned[static_cast<size_t>(extent.retention_) - 1];
  }
  extent.kind_ = Kind::kOrdinary;
  return line.ordinary[static_cast<int>(extent.order)];
}

void IdleExtents::enter(Extent& extent) {
  EvictionOrder& order = order_for(extent);
  extent.waits_in_ = &order;
  order.enter(extent, extent.pages(), ++uses_);
  waiting(extent, extent.pages());
  if (extent.kind_ == Kind::kFrozen) let_some_go();
}

void IdleExtents::leave(Extent& extent) {
  extent.waits_in_->leave(extent);
  waiting(extent, -extent.pages());
}

void IdleExtents::end_pins() {
  if (pinned_ == 0) return;
  const int64_t now = clock_();
  for (Line& line : lines_) {
    for (EvictionOrder& order : line.pinned) {  // each in the order in which its times end
      for (Extent* next; (next = extent_of(order.next())) && next->pinned_until_ <= now;)
        next->retain(Retention::kNone);
    }
  }
}

void IdleExtents::let_some_go() {
  while (static_cast<double>(frozen_idle_) > kMostFrozen * static_cast<double>(pool_)) {
    Extent* least = nullptr;
    for (const Line& line : lines_) {
      Extent* const next = line.next_frozen();
      if (next && (!least || next->uses_ < least->uses_)) least = next;
    }
    CHECK(least);
    least->give_way();
  }
}

}  // namespace kvilt
