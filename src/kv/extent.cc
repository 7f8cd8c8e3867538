#include "kv/extent.h"

#include <algorithm>

#include "base/check.h"
#include "kv/annex.h"
#include "kv/page_store.h"

namespace kvilt {

Extent::Extent(PageStore& store, int32_t number)
    : store_(store),
      number_(number),
      per_list_(store.extent_pages()),
      pages_(static_cast<size_t>(store.shape().L) * store.shape().G * per_list_, kNone),
      covered_(static_cast<size_t>(store.shape().L) * per_list_, 0) {}

Extent::~Extent() {
  grow(-held_);
  for (const PageId page : pages_) {
    if (page != kNone) store_.free(page);
  }
}

void Extent::put(int list, int page, PageId id) {
  DCHECK(!held(list, page));
  pages_[list * per_list_ + page] = id;
  grow(1);
}

PageId Extent::take(int list, int page) {
  CHECK(held(list, page));
  grow(-1);
  return std::exchange(pages_[list * per_list_ + page], kNone);
}

void Extent::drop(int list, int page) {
  if (!held(list, page)) return;
  store_.free(take(list, page));
}

// The sums that its pages are in.
void Extent::grow(int64_t by) {
  held_ += by;
  IdleExtents& idle = store_.idle();
  idle.held(owner_, by);
  if (frozen()) idle.frozen_ += by;
  if (!waits()) return;
  waits_in_->add_pages(*this, by);
  idle.waiting(*this, by);
}

void Extent::attach(AnnexKind kind, Run positions, std::span<const std::byte> bytes) {
  CHECK(users_ > 0);
  if (!by_token(kind.of)) drop_oldest_block(kind);
  annexes_.push_back(std::make_unique<const Annex>(store_, kind, positions, bytes));
  grow(annexes_.back()->pages());
  annexed_ += annexes_.back()->pages();
}

// If one more would be too many.
void Extent::drop_oldest_block(AnnexKind kind) {
  const auto is_one = [&](const auto& annex) { return annex->kind() == kind; };
  if (std::ranges::count_if(annexes_, is_one) < kMostBlocks) return;
  const auto oldest = std::ranges::find_if(annexes_, is_one);
  grow(-(*oldest)->pages());
  annexed_ -= (*oldest)->pages();
  annexes_.erase(oldest);
}

void Extent::drop_annexes() {
  grow(-std::exchange(annexed_, 0));
  annexes_.clear();
}

void Extent::cover(int layer, int page, int by) {
  uint16_t& count = covered_[layer * per_list_ + page];
  CHECK(by > 0 ? count < UINT16_MAX : count > 0);
  count = static_cast<uint16_t>(count + by);
  if (count > 0 || users_ > 0) return;
  const int G = store_.shape().G;
  for (int head = 0; head < G; ++head) drop(layer * G + head, page);
  if (held_ == annexed_) drop_annexes();
  if (waits() && held_ == 0) leave_idle();
}

void Extent::evict() {
  CHECK(users_ == 0);
  if (waits()) leave_idle();
  for (size_t i = 0; i < pages_.size(); ++i) drop(static_cast<int>(i) / per_list_, static_cast<int>(i) % per_list_);
  drop_annexes();
}

void Extent::touch() {
  if (!waits()) return;
  again = true;
  wait_anew([this] { ++uses_; });
}

// Where it waits follows from what changes.
void Extent::wait_anew(FunctionRef<void()> change) {
  if (!waits()) return change();
  store_.idle().leave(*this);
  change();
  store_.idle().enter(*this);
}

void Extent::give_to(OwnerId owner) {
  wait_anew([&] {
    store_.idle().held(owner_, -held_);
    owner_ = owner;
    store_.idle().held(owner_, held_);
  });
}

void Extent::retain(Retention retention) {
  wait_anew([&] { retention_ = retention; });
}

void Extent::freeze(uint64_t name) {
  const bool named = std::ranges::find(frozen_for_, name) != frozen_for_.end();
  if (named && !gave_way_) return;
  frozen_for_.reserve(frozen_for_.size() + 1);
  change_names([&] {
    if (!named) frozen_for_.push_back(name);
    gave_way_ = false;
  });
}

void Extent::thaw(uint64_t name) {
  if (std::ranges::find(frozen_for_, name) == frozen_for_.end()) return;
  change_names([&] { std::erase(frozen_for_, name); });
}

void Extent::thaw() {
  if (frozen_for_.empty()) return;
  change_names([&] { frozen_for_.clear(); });
}

void Extent::give_way() {
  change_names([&] { gave_way_ = true; });
}

void Extent::change_names(FunctionRef<void()> change) {
  wait_anew([&] {
    const bool before = frozen();
    change();
    if (frozen_for_.empty()) gave_way_ = false;
    if (frozen() != before) store_.idle().frozen_ += before ? -held_ : held_;
  });
}

void Extent::add(Hold hold) {
  if (hold == Hold::kKeep) {
    ++keepers_;
  } else if (++users_ == 1 && waits()) {
    again = true;
    ++uses_;
    leave_idle();
  }
}

void Extent::release(Hold hold) {
  int& count = hold == Hold::kKeep ? keepers_ : users_;
  CHECK(count > 0);
  if (--count > 0 || users_ > 0) return;
  if (keepers_ > 0) {
    become_idle();
  } else {
    if (waits()) leave_idle();
    delete this;
  }
}

void Extent::become_idle() {
  const int G = store_.shape().G;
  for (size_t i = 0; i < covered_.size(); ++i) {
    const int layer = static_cast<int>(i) / per_list_, page = static_cast<int>(i) % per_list_;
    for (int head = 0; covered_[i] == 0 && head < G; ++head) drop(layer * G + head, page);
  }
  if (held_ == annexed_) drop_annexes();
  if (held_ == 0) return;
  store_.idle().enter(*this);
}

void Extent::leave_idle() { store_.idle().leave(*this); }

}  // namespace kvilt
