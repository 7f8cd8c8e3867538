#include "kv/extent.h"

#include "base/check.h"
#include "kv/annex.h"
#include "kv/page_store.h"

namespace kvilt {

Extent* IdleExtents::next() const {
  Evictable *const piece = order_[0].next(), *const chain = order_[1].next();
  if (!piece || !chain) return static_cast<Extent*>(piece ? piece : chain);
  const bool chains_first = order_[1].pages() > order_[0].pages() || order_[1].since(*chain) < order_[0].since(*piece);
  return static_cast<Extent*>(chains_first ? chain : piece);
}

Extent::Extent(PageStore& store, int32_t number)
    : store_(store),
      number_(number),
      per_list_(store.extent_pages()),
      pages_(static_cast<size_t>(store.shape().L) * store.shape().G * per_list_, kNone),
      covered_(static_cast<size_t>(store.shape().L) * per_list_, 0) {}

EvictionOrder& Extent::waits_in() { return store_.idle().order_[static_cast<int>(waits_in_)]; }

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
  if (waits()) waits_in().add_pages(*this, -1);
}

void Extent::attach(AnnexKind kind, Run positions, std::span<const std::byte> bytes) {
  CHECK(users_ > 0);
  annexes_.push_back(std::make_unique<const Annex>(store_, kind, positions, bytes));
  held_ += annexes_.back()->pages();
  annexed_ += annexes_.back()->pages();
}

void Extent::drop_annexes() {
  if (waits()) waits_in().add_pages(*this, -annexed_);
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
  waits_in().leave(*this);
  waits_in().enter(*this, held_, ++store_.idle().clock_);
}

void Extent::add(Hold hold) {
  if (hold == Hold::kKeep) {
    ++keepers_;
  } else if (++users_ == 1 && waits()) {
    again = true;
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
  waits_in_ = order;
  waits_in().enter(*this, held_, ++store_.idle().clock_);
}

void Extent::leave_idle() { waits_in().leave(*this); }

}  // namespace kvilt
