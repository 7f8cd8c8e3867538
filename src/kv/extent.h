// kv/extent.h: the unit of ownership: the pages of some hundred slots of one request, at all layers and KV heads.
// Idea:       a request's own KV is a list of extents (PageList). What is cached of it keeps extents (KvSegment), what a
//             running request reads pins those that it reads, and no more (Placement). The cache evicts extents.
// Invariants: an extent with users is never evicted. When the last user goes, pages in which no kept segment has a slot
//             go back to the pool at once: nothing stays that cannot be found. Without keepers either, all pages do.
//             pages() of the idle extents is a sum that is kept, never counted anew (kv/idle_extents.h).
//             Annexes (kv/annex.h) hold pages too, which go with the last of the KV's.
// Threads:    the engine thread.
// Cost:       O(1) but for pages that are freed. 4 bytes a page, and 2 bytes for each layer and page number.
// Not here:   which segments lie in an extent (kv/segment_cache.h), which slots a request uses (kv/page_table.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/annex_kind.h"
#include "base/function_ref.h"
#include "base/runs.h"
#include "kv/idle_extents.h"

namespace kvilt {

class Annex;
class PageStore;
using PageId = int32_t;

inline constexpr int32_t kExtentSlots = 256;  // about; a whole number of pages, at least one
inline constexpr int kMostBlocks = 16;        // annexes about runs that end in an extent; of the shortest, two of each

class Extent : public Evictable {
 public:
  enum class Hold : uint8_t { kUse, kKeep };
  // number: which part of the request's slots it is: [number * slots of an extent, ...).
  Extent(PageStore& store, int32_t number);
  Extent(const Extent&) = delete;
  Extent& operator=(const Extent&) = delete;

  int32_t number() const { return number_; }
  // list: layer * G + KV head. page: within the extent.
  bool held(int list, int page) const { return pages_[list * per_list_ + page] != kNone; }
  PageId at(int list, int page) const { return pages_[list * per_list_ + page]; }
  void put(int list, int page, PageId id);  // REQUIRES: not held
  PageId take(int list, int page);          // REQUIRES: held; the caller owns the page
  int64_t pages() const { return held_; }
  bool kept() const { return keepers_ > 0; }  // by a segment
  int users() const { return users_; }

  // A kept segment has (by = 1), or no longer has (-1), slots in the page at that layer.
  void cover(int layer, int page, int by);
  // Side data of tokens with slots here. Of blocks of a kind the oldest goes where there would be more than kMostBlocks:
  // a hot text that is found in ever other runs would collect one for each. REQUIRES: the store has the pages that it
  // takes; somebody uses the extent.
  void attach(AnnexKind kind, Run positions, std::span<const std::byte> bytes);
  std::span<const std::unique_ptr<const Annex>> annexes() const { return annexes_; }
  // All pages go back to the pool. REQUIRES: nobody uses it.
  void evict();
  // Makes an idle extent the most recently used; it counts as used again.
  void touch();

  // Whose it is; nobody's at first.
  OwnerId owner() const { return owner_; }
  void give_to(OwnerId owner);
  // It is kept with preference for so long from each of its uses on; kNone: no longer.
  void retain(Retention retention);
  Retention retention() const { return retention_; }
  // It is frozen while it has names: numbers of those who keep it so (engine/retention.cc). Where frozen ones are too
  // many it gives way: it waits as ordinary, keeps its names, and is frozen again when it is told so.
  void freeze(uint64_t name);
  void thaw(uint64_t name);
  void thaw();  // of all names
  void give_way();
  bool frozen() const { return !frozen_for_.empty() && !gave_way_; }
  std::span<const uint64_t> frozen_for() const { return frozen_for_; }

  // Cached segments with a slot here, by id (kv/segment_cache.h keeps it).
  std::vector<uint64_t> segments;
  IdleExtents::Order order = IdleExtents::Order::kPieces;  // in which it waits when it is idle

 private:
  template <Hold>
  friend class ExtentRef;
  friend class IdleExtents;
  static constexpr PageId kNone = -1;
  ~Extent();
  void add(Hold hold);
  void release(Hold hold);
  void drop(int list, int page);
  void drop_annexes();
  void drop_oldest_block(AnnexKind kind);
  void grow(int64_t by);
  void become_idle();
  void leave_idle();
  void wait_anew(FunctionRef<void()> change);
  void change_names(FunctionRef<void()> change);

  PageStore& store_;
  const int32_t number_;
  const int per_list_;
  std::vector<PageId> pages_;      // [L * G][pages of an extent]
  std::vector<uint16_t> covered_;  // [L][pages of an extent]
  std::vector<std::unique_ptr<const Annex>> annexes_;
  int64_t held_ = 0, annexed_ = 0;  // pages; annexed_: those of held_ that annexes have
  int users_ = 0, keepers_ = 0;
  // What decides where it waits, and while it does, where that is.
  OwnerId owner_ = 0;
  Retention retention_ = Retention::kNone;
  IdleExtents::Kind kind_ = IdleExtents::Kind::kOrdinary;
  uint32_t uses_ = 0;  // that began while it was idle
  std::vector<uint64_t> frozen_for_;
  bool gave_way_ = false;
  int64_t pinned_until_ = 0;
  EvictionOrder* waits_in_ = nullptr;
};

// A counted reference.
template <Extent::Hold hold>
class ExtentRef {
 public:
  ExtentRef() = default;
  explicit ExtentRef(Extent* extent) : extent_(extent) {
    if (extent_) extent_->add(hold);
  }
  ExtentRef(const ExtentRef& other) : ExtentRef(other.extent_) {}
  ExtentRef(ExtentRef&& other) noexcept : extent_(std::exchange(other.extent_, nullptr)) {}
  ExtentRef& operator=(ExtentRef other) noexcept {
    std::swap(extent_, other.extent_);
    return *this;
  }
  ~ExtentRef() {
    if (extent_) extent_->release(hold);
  }
  Extent* get() const { return extent_; }
  Extent* operator->() const { return extent_; }
  explicit operator bool() const { return extent_ != nullptr; }

 private:
  Extent* extent_ = nullptr;
};
using ExtentUse = ExtentRef<Extent::Hold::kUse>;    // it is read or written: it stays as it is
using ExtentKeep = ExtentRef<Extent::Hold::kKeep>;  // it is cached: it stays until it is evicted

}  // namespace kvilt
