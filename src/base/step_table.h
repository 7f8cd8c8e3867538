// base/step_table.h: a hash table from 64-bit keys to small values that grows without a stall.
// Idea:       open addressing with linear probing. When it is full, a table of twice the size takes over, and each later
//             change moves a few slots of the old one; a look-up reads both meanwhile (W. Litwin's linear hashing, Redis'
//             dict). Fresh tables come zeroed from the system as they are first touched, and of the old one a megabyte
//             goes back at a time, so that no single change pays for the size.
// Invariants: at most 5/8 of the slots are taken. No empty slot is between a key and its home; of the old table, between
//             a key and its home or the first slot that has not moved. A value of zero bytes is an empty slot's.
// Threads:    one owner.
// Cost:       a change moves kMoved slots at most besides its own work; a look-up reads a slot more while a table moves.
// Not here:   hashing: keys should be spread evenly (mixed() does it for counters).
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace kvilt {

// Memory that is zero until it is written. It is mapped page by page as it is first touched.
class ZeroedBytes {
 public:
  ZeroedBytes() = default;
  explicit ZeroedBytes(size_t size) : size_(size) {
    if (size == 0) return;
    void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    data_ = at;
  }
  ZeroedBytes(ZeroedBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  ZeroedBytes& operator=(ZeroedBytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~ZeroedBytes() {
    if (data_) ::munmap(data_, size_);
  }
  void* data() const { return data_; }
  size_t size() const { return size_; }
  // Bytes [begin, end), multiples of a page, go back to the system and are zero again.
  void release(size_t begin, size_t end) { ::madvise(static_cast<char*>(data_) + begin, end - begin, MADV_DONTNEED); }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Value: plain data; empty() says that all its bytes are zero.
template <class Value>
class StepTable {
 public:
  static constexpr size_t kSmallest = 64;  // slots
  static constexpr int kMoved = 16;        // slots of the old table that a change moves

  StepTable() : now_(kSmallest) {}

  // SplitMix64's finaliser: spreads keys that count upwards.
  static uint64_t mixed(uint64_t key) {
    key = (key ^ key >> 30) * 0xbf58476d1ce4e5b9ull;
    key = (key ^ key >> 27) * 0x94d049bb133111ebull;
    return key ^ key >> 31;
  }

  void prefetch(uint64_t key) const {
    __builtin_prefetch(&now_.at[key & now_.mask]);
    if (moving()) __builtin_prefetch(&old_.at[key & old_.mask]);
  }
  // Null: the key is not there. Valid until the next change.
  const Value* find(uint64_t key) const {
    if (const Slot* slot = in_now(key)) return &slot->value;
    const Slot* const slot = moving() ? in_old(key) : nullptr;
    return slot ? &slot->value : nullptr;
  }
  Value* find(uint64_t key) { return const_cast<Value*>(std::as_const(*this).find(key)); }

  // The table has room for one more key; what may lack memory has happened then.
  void reserve_one() {
    step();
    if ((used_ + 1) * 8 > now_.size() * 5) begin_move(now_.size() * 2);
  }
  // REQUIRES: the key is not there, reserve_one() came before, the value is not empty.
  Value* insert(uint64_t key, Value value) {
    size_t i = key & now_.mask;
    while (!now_.at[i].value.empty()) i = (i + 1) & now_.mask;
    now_.at[i] = {key, value};
    ++used_;
    return &now_.at[i].value;
  }
  // REQUIRES: the key is there.
  void erase(uint64_t key) {
    if (const Slot* const slot = in_now(key)) {
      vacate(static_cast<size_t>(slot - now_.at));
    } else {
      Slot* const old = const_cast<Slot*>(in_old(key));
      CHECK(old != nullptr);
      *old = {kGone, {}};
    }
    --used_;
    step();
    // A smaller table that cannot be had is not needed.
    if (!moving() && used_ * 8 < now_.size() && now_.size() > kSmallest) {
      try {
        begin_move(now_.size() / 2);
      } catch (const std::bad_alloc&) {
      }
    }
  }

  size_t size() const { return used_; }
  bool empty() const { return used_ == 0; }
  size_t bytes() const { return now_.bytes.size() + old_.bytes.size() - released_; }
  bool moving() const { return old_.at != nullptr; }

 private:
  static_assert(std::is_trivially_copyable_v<Value>);
  struct Slot {
    uint64_t key;
    Value value;
  };
  static constexpr uint64_t kGone = 1;          // with an empty value: a slot of the old table whose key was erased
  static constexpr size_t kReleased = 1 << 20;  // bytes that go back at a time

  struct Slots {
    Slots() = default;
    explicit Slots(size_t size) : bytes(size * sizeof(Slot)), at(static_cast<Slot*>(bytes.data())), mask(size - 1) {}
    size_t size() const { return mask + 1; }
    ZeroedBytes bytes;
    Slot* at = nullptr;
    size_t mask = 0;
  };

  const Slot* in_now(uint64_t key) const {
    for (size_t i = key & now_.mask; !now_.at[i].value.empty(); i = (i + 1) & now_.mask) {
      if (now_.at[i].key == key) return &now_.at[i];
    }
    return nullptr;
  }
  // Slots before moved_ have left; they may be zero already, so that the search begins behind them. The last ones to
  // leave may all be taken: it ends where it has seen them.
  const Slot* in_old(uint64_t key) const {
    const size_t home = key & old_.mask;
    size_t i = home < moved_ ? moved_ : home;
    for (size_t left = old_.size() - moved_; left > 0; --left) {
      const Slot& slot = old_.at[i];
      if (slot.value.empty() && slot.key != kGone) return nullptr;
      if (!slot.value.empty() && slot.key == key) return &slot;
      if (++i > old_.mask) i = moved_;  // around the end
    }
    return nullptr;
  }
  // Closes the gap: each later slot that the gap would cut off from its home moves into it, and leaves the next gap.
  void vacate(size_t gap) {
    for (size_t i = (gap + 1) & now_.mask; !now_.at[i].value.empty(); i = (i + 1) & now_.mask) {
      const size_t home = now_.at[i].key & now_.mask;
      if (((i - home) & now_.mask) < ((i - gap) & now_.mask)) continue;  // its home is after the gap
      now_.at[gap] = now_.at[i];
      gap = i;
    }
    now_.at[gap] = {};
  }
  void begin_move(size_t size) {
    CHECK(!moving());  // the old one has left long before the new one is full
    Slots fresh(size);
    old_ = std::exchange(now_, std::move(fresh));
    moved_ = released_ = 0;
  }
  void step() {
    if (!moving()) return;
    for (int n = 0; n < kMoved && moved_ <= old_.mask; ++n, ++moved_) {
      const Slot& slot = old_.at[moved_];
      if (slot.value.empty()) continue;
      insert(slot.key, slot.value);
      --used_;
    }
    if (moved_ > old_.mask) {
      old_ = {};
      released_ = 0;
    } else if (const size_t done = moved_ * sizeof(Slot) / kReleased * kReleased; done > released_) {
      old_.bytes.release(released_, done);
      released_ = done;
    }
  }

  Slots now_, old_;
  size_t moved_ = 0;     // slots of the old table
  size_t released_ = 0;  // bytes of it
  size_t used_ = 0;
};

}  // namespace kvilt
