#include "kv/extent.h"

#include "base/check.h"
#include "kv/annex.h"
#include "kv/page_store.h"

namespace kvilt {

Extent* IdleExtents::next() const {
  const auto &pieces = order_[0], &chains = order_[1];
  if (pieces.empty() || chains.empty()) {
    return pieces.empty() ? (chains.empty() ? nullptr : chains.front()) : pieces.front();
  }
  if (pages_[1] > pages_[0]) return chains.front();
  return pieces.front()->idle_since_ < chains.front()->idle_since_ ? pieces.front() : chains.front();
}

Extent::Extent(PageStore& store, int32_t number)
    : store_(store),
      number_(number),
      per_list_(store.extent_pages()),
      pages_(static_cast<size_t>(store.shape().L) * store.shape().G * per_list_, kNone),
      covered_(static_cast<size_t>(store.shape().L) * per_list_, 0),
      place_{this} {}

Extent::~Extent() {
  for (const PageId page : pages_) {
    if (page != kNone) store_.free(page);
  }
}

void Extent::put(int list, int page, PageId id) {
  DCHECK(!held(list, page));
  pages_[list * per_list_ + page] = id;
  ++held_;
}

PageId Extent::take(int list, int page) {
  CHECK(held(list, page));
  --held_;
  return std::exchange(pages_[list * per_list_ + page], kNone);
}

void Extent::drop(int list, int page) {
  if (!held(list, page)) return;
  store_.free(take(list, page));
  if (idle_) --store_.idle().pages_[static_cast<int>(waits_in_)];
}

void Extent::attach(AnnexKind kind, Run positions, std::span<const std::byte> bytes) {
  CHECK(users_ > 0);
  annexes_.push_back(std::make_unique<const Annex>(store_, kind, positions, bytes));
  held_ += annexes_.back()->pages();
  annexed_ += annexes_.back()->pages();
}

void Extent::drop_annexes() {
  if (idle_) store_.idle().pages_[static_cast<int>(waits_in_)] -= annexed_;
  held_ -= std::exchange(annexed_, 0);
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
  if (idle_ && held_ == 0) leave_idle();
}

void Extent::evict() {
  CHECK(users_ == 0);
  if (idle_) leave_idle();
  for (size_t i = 0; i < pages_.size(); ++i) drop(static_cast<int>(i) / per_list_, static_cast<int>(i) % per_list_);
  drop_annexes();
}

void Extent::touch() {
  if (!idle_) return;
  auto& order = store_.idle().order_[static_cast<int>(waits_in_)];
  order.splice(order.end(), order, idle_at_);
  idle_since_ = ++store_.idle().clock_;
}

void Extent::add(Hold hold) {
  if (hold == Hold::kKeep) {
    ++keepers_;
  } else if (++users_ == 1 && idle_) {
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
    if (idle_) leave_idle();
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
  IdleExtents& idle = store_.idle();
  waits_in_ = order;
  auto& list = idle.order_[static_cast<int>(waits_in_)];
  idle_at_ = place_.begin();
  list.splice(list.end(), place_);
  idle.pages_[static_cast<int>(waits_in_)] += held_;
  idle_since_ = ++idle.clock_;
  idle_ = true;
}

void Extent::leave_idle() {
  IdleExtents& idle = store_.idle();
  place_.splice(place_.end(), idle.order_[static_cast<int>(waits_in_)], idle_at_);
  idle.pages_[static_cast<int>(waits_in_)] -= held_;
  idle_ = false;
}

}  // namespace kvilt
