// base/step_map.h: a map from 64-bit keys to objects that stay where they are, which grows without a stall.
// Idea:    the objects are in chunks; a StepTable says which one a key has.
// Threads: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/chunked.h"
#include "base/step_table.h"

namespace kvilt {

template <class T>
class StepMap {
 public:
  const T* find(uint64_t key) const {
    const Place* const place = places_.find(mixed(key));
    return place ? &items_[place->item_and_one - 1].value : nullptr;
  }
  T* find(uint64_t key) { return const_cast<T*>(std::as_const(*this).find(key)); }
  // The key's object; a new one if it has none.
  T& at(uint64_t key) {
    if (T* const known = find(key)) return *known;
    places_.reserve_one();
    if (free_.empty()) {
      free_.reserve(1);
      items_.emplace_back();
      free_.push_back(static_cast<uint32_t>(items_.size() - 1));
    }
    const uint32_t item = free_.back();
    free_.pop_back();
    places_.insert(mixed(key), {item + 1});
    items_[item].key = key;
    items_[item].taken = true;
    return items_[item].value;
  }
  void erase(uint64_t key) {  // an unknown key is ignored
    const Place* const place = places_.find(mixed(key));
    if (!place) return;
    const uint32_t item = place->item_and_one - 1;
    free_.push_back(item);
    places_.erase(mixed(key));
    items_[item] = {};
    if (!places_.empty()) return;
    items_.clear();  // give back the memory of a peak
    std::vector<uint32_t>().swap(free_);
    any_ = 0;
  }
  // Some key. REQUIRES: there is one. Erasing them one by one in this way takes as long as there are objects.
  uint64_t any() const {
    while (!items_[any_ % items_.size()].taken) ++any_;
    return items_[any_ % items_.size()].key;
  }
  template <class Visitor>
  void each(Visitor&& visitor) const {
    for (size_t i = 0; i < items_.size(); ++i) {
      if (items_[i].taken) visitor(items_[i].key, items_[i].value);
    }
  }
  size_t size() const { return places_.size(); }
  bool empty() const { return size() == 0; }
  size_t bytes() const { return places_.bytes() + items_.bytes() + free_.capacity() * sizeof(uint32_t); }

 private:
  struct Place {
    uint32_t item_and_one = 0;
    bool empty() const { return item_and_one == 0; }
  };
  struct Item {
    T value{};
    uint64_t key = 0;
    bool taken = false;
  };
  static uint64_t mixed(uint64_t key) { return StepTable<Place>::mixed(key); }

  StepTable<Place> places_;
  Chunked<Item, 9> items_;
  std::vector<uint32_t> free_;
  mutable size_t any_ = 0;  // where any() found the last one
};

}  // namespace kvilt
