#include "kv/idle_extents.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <utility>

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
  for (size_t i = 0; i < kPins; ++i) pins.emplace_back(EvictionOrder::Rule::kLru);
}

IdleExtents::Owner::Owner(size_t its_line) : line(its_line) {
  for (size_t i = 0; i < kUses; ++i) by_uses.emplace_back(EvictionOrder::Rule::kLru);
}

IdleExtents::IdleExtents(int64_t pool_pages) : pool_(pool_pages), clock_(steady_seconds) {
  lines_.emplace_back().share = pool_pages;
  add_to(0);
}

void IdleExtents::add_to(size_t line) {
  owners_.emplace_back(line);  // first: a line names none that is not there
  lines_[line].owners.push_back(static_cast<OwnerId>(owners_.size() - 1));
}

OwnerId IdleExtents::add_owner(double share) {
  size_t line = 0;
  if (share > 0) {
    line = lines_.size();
    const auto pages = static_cast<int64_t>(std::llround(share * static_cast<double>(pool_)));
    lines_.emplace_back().share = std::min(lines_[0].share, pages);
    lines_[0].share -= lines_.back().share;
  }
  add_to(line);
  for (const OwnerId owner : lines_[line].owners) let_some_go(owner);  // it was alone until now
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
  for (const EvictionOrder& order : pins) {
    Extent* const next = extent_of(order.next());
    if (next && (!first || next->pinned_until_ < first->pinned_until_)) first = next;
  }
  return first;
}

bool IdleExtents::Line::beyond(int64_t pages, double part) const {
  return static_cast<double>(pages) > part * static_cast<double>(share);
}

size_t IdleExtents::Owner::least_used() const {
  size_t uses = 0;
  while (uses < kUses && !by_uses[uses].next()) ++uses;
  return uses;
}

// Of its owners' least used the one with the fewest uses; of such the one that waits longest.
Extent* IdleExtents::next_frozen(const Line& line) const {
  Extent* least = nullptr;
  std::pair<size_t, uint64_t> of_least;
  for (const OwnerId id : line.owners) {
    const Owner& owner = owners_[id];
    if (owner.frozen == 0) continue;
    const size_t uses = owner.least_used();
    Extent* const next = extent_of(owner.by_uses[uses].next());
    const std::pair of_next(uses, owner.by_uses[uses].since(*next));
    if (least && of_next > of_least) continue;
    least = next;
    of_least = of_next;
  }
  return least;
}

Extent* IdleExtents::next_of(const Line& line) const {
  if (Extent* const next = line.next_ordinary()) return next;
  if (Extent* const next = line.next_pinned()) return next;
  return next_frozen(line);
}

int64_t IdleExtents::Line::pages(Reach reach) const { return reach == Reach::kAll ? idle : idle - pinned - frozen; }

int64_t IdleExtents::pages(OwnerId wanted_by, Reach reach) const {
  if (reach == Reach::kAll) return idle_;
  const Line& own = lines_[owners_[wanted_by].line];
  int64_t out = own.pages(reach);
  for (const Line& line : lines_) {
    if (&line != &own) out += std::clamp<int64_t>(line.held - line.share, 0, line.pages(reach));
  }
  return out;
}

// Of those that have anything within reach the line that is furthest beyond its share; null: none is beyond.
const IdleExtents::Line* IdleExtents::furthest_beyond(Reach reach) const {
  int64_t most_beyond = 0;
  const Line* out = nullptr;
  for (const Line& line : lines_) {
    if (line.pages(reach) == 0 || line.held - line.share <= most_beyond) continue;
    most_beyond = line.held - line.share;
    out = &line;
  }
  return out;
}

// Of those that have anything.
const IdleExtents::Line* IdleExtents::fullest() const {
  const auto fill = [](const Line& line) {
    return static_cast<double>(line.held) / static_cast<double>(std::max<int64_t>(1, line.share));
  };
  const Line* out = nullptr;
  for (const Line& line : lines_) {
    if (line.idle > 0 && (!out || fill(line) > fill(*out))) out = &line;
  }
  return out;
}

// Where nobody holds more than its share and yet there is no room, it is the asking owner that is about to: the shares
// make up the pool. If it has nothing that waits, what it runs goes before what others only keep.
Extent* IdleExtents::next(OwnerId wanted_by, Reach reach) const {
  const Line& own = lines_[owners_[wanted_by].line];
  const Line* from = furthest_beyond(reach);
  if (!from && own.pages(reach) > 0) from = &own;
  if (!from && reach == Reach::kAll) from = fullest();
  if (!from) return nullptr;
  return reach == Reach::kAll ? next_of(*from) : from->next_ordinary();
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
  Owner& owner = owners_[extent.owner_];
  Line& line = lines_[owner.line];
  idle_ += by;
  line.idle += by;
  if (extent.kind_ == Kind::kPinned) {
    pinned_ += by;
    line.pinned += by;
    owner.pinned += by;
  }
  if (extent.kind_ == Kind::kFrozen) {
    line.frozen += by;
    owner.frozen += by;
  }
}

EvictionOrder& IdleExtents::order_for(Extent& extent) {
  Owner& owner = owners_[extent.owner_];
  Line& line = lines_[owner.line];
  if (extent.frozen()) {
    extent.kind_ = Kind::kFrozen;
    return owner.by_uses[std::min(static_cast<size_t>(std::bit_width(extent.uses_)), kUses - 1)];
  }
  const double most_by_one = owner.line == 0 ? kMostPinnedByOne : kMostPinned;
  const bool pinned = extent.retention_ != Retention::kNone &&
                      !line.beyond(line.pinned + extent.pages(), kMostPinned) &&
                      !line.beyond(owner.pinned + extent.pages(), most_by_one);
  if (pinned) {
    extent.kind_ = Kind::kPinned;
    extent.pinned_until_ = clock_() + kRetained[static_cast<int>(extent.retention_)];
    return line.pins[static_cast<size_t>(extent.retention_) - 1];
  }
  extent.kind_ = Kind::kOrdinary;
  return line.ordinary[static_cast<int>(extent.order)];
}

void IdleExtents::enter(Extent& extent) {
  if (extent.retention_ != Retention::kNone) end_pins();  // what is pinned no longer takes no place from this one
  EvictionOrder& order = order_for(extent);
  extent.waits_in_ = &order;
  order.enter(extent, extent.pages(), ++uses_);
  waiting(extent, extent.pages());
  if (extent.kind_ == Kind::kFrozen) let_some_go(extent.owner_);
}

void IdleExtents::leave(Extent& extent) {
  extent.waits_in_->leave(extent);
  waiting(extent, -extent.pages());
}

void IdleExtents::end_pins() {
  if (pinned_ == 0) return;
  const int64_t now = clock_();
  for (Line& line : lines_) {
    for (EvictionOrder& order : line.pins) {  // each in the order in which its times end
      for (Extent* next; (next = extent_of(order.next())) && next->pinned_until_ <= now;)
        next->retain(Retention::kNone);
    }
  }
}

// Whether another tenant is known that has no share either. Who has no name is none.
bool IdleExtents::has_others(OwnerId owner) const {
  return owners_[owner].line == 0 && std::ssize(lines_[0].owners) > (owner == 0 ? 1 : 2);
}

// Its own beyond what it may have of the line; then the line's least used, whose ever they are.
void IdleExtents::let_some_go(OwnerId id) {
  const Owner& owner = owners_[id];
  const Line& line = lines_[owner.line];
  const bool has_others_here = has_others(id);
  while (has_others_here && line.beyond(owner.frozen, kMostFrozenByOne))
    extent_of(owner.by_uses[owner.least_used()].next())->give_way();
  while (line.beyond(line.frozen, kMostFrozen)) next_frozen(line)->give_way();
}

}  // namespace kvilt
