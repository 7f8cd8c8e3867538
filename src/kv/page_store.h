// kv/page_store.h: the bounded pool of pages. A page holds P slots of K and V of ONE (layer, KV head): first P keys,
// then P values, as rows of a KV type (tensor/kv_row.h). A head can so keep less than another in real bytes.
// Source:     SegPagedAttention in RedKnot (docs/papers.md#redknot); docs/design/kv.md#from-the-pool-up.
// Invariants: a page has one owner, an extent (kv/extent.h) or the spare pages of a PageList; sharing is by sharing the
//             extent. Memory is committed when first touched.
// Threads:    the engine thread; touch() any. Where a slot is any may ask while it waits (PageTable::prepare_reads).
// Cost:       alloc and free are O(1); with zero_freed() free takes a page's bytes at the memory's speed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "kv/extent.h"
#include "kvilt/result.h"
#include "tensor/kv_row.h"
#include "tensor/view.h"

namespace kvilt {

struct KvShape {
  int L = 0, G = 0, E = 0;
  int P = 32;  // slots of a page
  DType dtype = DType::kF32;
  // Entry i is the layer whose K and V the model's layer L + i reads, which has none of its own (ModelConfig::kv_readers).
  std::vector<uint16_t> readers = {};
  int layers() const { return L + static_cast<int>(readers.size()); }               // of the model
  int kv_layer(int layer) const { return layer < L ? layer : readers[layer - L]; }  // of a layer of the model
  int last_reader(int layer) const {                                                // of the K and V of layer < L
    for (int i = static_cast<int>(readers.size()); i-- > 0;) {
      if (readers[i] == layer) return L + i;
    }
    return layer;
  }
  int64_t row_bytes() const { return kv_row_bytes(dtype, E); }  // one key
  int64_t page_bytes() const { return 2 * P * row_bytes(); }
  int64_t v_after_k() const { return P * row_bytes(); }  // of a slot, in bytes
  int64_t token_bytes() const { return 2 * row_bytes() * L * G; }
};

class PageStore {
 public:
  // Errors: kInvalidArgument (bytes hold fewer than L * G pages), kExhausted (the system refuses the address range).
  static Result<PageStore> create(const KvShape& shape, int64_t bytes);

  const KvShape& shape() const { return shape_; }
  int extent_pages() const { return std::max(1, kExtentSlots / shape_.P); }  // of one (layer, KV head)
  int32_t extent_slots() const { return extent_pages() * shape_.P; }
  IdleExtents& idle() { return idle_; }
  const IdleExtents& idle() const { return idle_; }
  int64_t pages() const { return pages_; }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()) + pages_ - touched_; }

  PageId alloc();  // REQUIRES: free_pages() > 0
  void free(PageId page);
  // Of the bytes that pages are handed out of first, those in [begin, end) get memory now, and not when a page is first
  // written: a first touch may cost more than the writing (docs/results/store.md#reading-and-computing-at-once). Any
  // thread; what is in them stays. Where the system cannot, nothing happens.
  void touch(int64_t begin, int64_t end) const;
  // From now on a page that is given back is overwritten with zeros.
  void zero_freed() { zeroes_ = true; }

  // The page's P keys, and its P values: rows of row_bytes().
  std::byte* k(PageId page) const { return arena_.as<std::byte>() + page * shape_.page_bytes(); }
  std::byte* v(PageId page) const { return k(page) + shape_.v_after_k(); }
  // The key of a list's slot that is in this page.
  std::byte* k(PageId page, int32_t slot) const { return k(page) + slot % shape_.P * shape_.row_bytes(); }

 private:
  PageStore(const KvShape& shape, int64_t pages, Buffer arena)
      : shape_(shape), pages_(pages), idle_(pages), arena_(std::move(arena)) {}
  KvShape shape_;
  int64_t pages_ = 0;
  int64_t touched_ = 0;  // pages [touched_, pages_) were never handed out
  bool zeroes_ = false;
  std::vector<PageId> free_;
  IdleExtents idle_;
  Buffer arena_;
};

// The pages of one request's own K and V, in extents: per (layer, KV head) a list by slot / P, in which pages may be
// missing, since a head that keeps less than another holds fewer (kv/page_table.h says which). It also owns spare pages,
// which are reserved and wait to be held. When the list dies, the spare pages go back to the store, and so do the pages
// that no cached segment keeps. Neither copied nor moved.
class PageList {
 public:
  explicit PageList(PageStore& store);
  ~PageList();
  PageList(const PageList&) = delete;
  PageList& operator=(const PageList&) = delete;

  bool held(int layer, int head, int32_t page) const {
    const int32_t extent = page / extent_pages_;
    return extent < static_cast<int32_t>(extents_.size()) &&
           extents_[extent]->held(list_of(layer, head), page % extent_pages_);
  }
  int64_t held(int layer, int head) const { return lists_[list_of(layer, head)].held; }
  int32_t end(int layer, int head) const {
    return lists_[list_of(layer, head)].end;
  }  // after the last that was ever held
  int32_t pages_of(int32_t slots) const { return (slots + store_.shape().P - 1) / store_.shape().P; }

  // Page number `page` of the list, taken from the spare ones if there are any. REQUIRES: it is missing; there is a
  // spare or a free page.
  void hold(int layer, int head, int32_t page);
  // Gives the page back: to the spare ones while they are fewer than reserved, else to the store. REQUIRES: it is held.
  void drop(int layer, int head, int32_t page);
  // Holds every page of slots [0, slots) that is after all held ones. REQUIRES: no page is missing; there are enough
  // spare or free ones.
  void grow(int layer, int head, int32_t slots);

  // Gives back what is after the pages of slots [0, slots).
  void shrink(int layer, int head, int32_t slots);

  // Makes the number of spare pages `pages`. REQUIRES: the store has pages - spare() free ones.
  void reserve(int64_t pages);
  int64_t spare() const { return static_cast<int64_t>(spare_.size()); }

  std::byte* k(int layer, int head, int32_t slot) const { return store_.k(page(layer, head, slot), slot); }
  std::byte* v(int layer, int head, int32_t slot) const { return k(layer, head, slot) + store_.shape().v_after_k(); }
  int64_t pages() const { return total_; }  // held and spare
  int64_t unshared_pages() const;  // of these, those that go, or become idle, when the list dies: no other uses them
  // Whose its extents are, those to come included.
  void give_to(OwnerId owner);
  OwnerId owner() const { return owner_; }
  PageStore& store() const { return store_; }
  std::span<const ExtentUse> extents() const { return extents_; }

 private:
  struct List {
    int32_t end = 0;  // after the last page that was ever held
    int64_t held = 0;
  };
  int list_of(int layer, int head) const { return layer * store_.shape().G + head; }
  PageId take();
  PageId page(int layer, int head, int32_t slot) const {
    const int32_t page = slot / store_.shape().P;
    CHECK(held(layer, head, page));  // its head may have dropped the key; never read a stranger's page
    return extents_[page / extent_pages_]->at(list_of(layer, head), page % extent_pages_);
  }

  PageStore& store_;
  const int32_t extent_pages_;
  std::vector<ExtentUse> extents_;
  std::vector<List> lists_;  // L * G
  std::vector<PageId> spare_;
  int64_t reserved_ = 0;
  int64_t total_ = 0;
  OwnerId owner_ = 0;
};

// Some consecutive extents of another request, pinned: what a placement reads.
class PinnedPages {
 public:
  PinnedPages() = default;
  // first: the number of extents[0]; null extents were evicted and must not be read.
  PinnedPages(const PageStore& store, int32_t first, std::span<const ExtentKeep> extents);
  PinnedPages(const PinnedPages&) = default;
  PinnedPages(PinnedPages&&) = default;
  PinnedPages& operator=(const PinnedPages&) = default;
  PinnedPages& operator=(PinnedPages&&) = default;
  ~PinnedPages();  // the last extents become idle first: they are evicted before what they continue

  const std::byte* k(int layer, int head, int32_t slot) const { return store_->k(page(layer, head, slot), slot); }
  const std::byte* v(int layer, int head, int32_t slot) const {
    return k(layer, head, slot) + store_->shape().v_after_k();
  }

 private:
  PageId page(int layer, int head, int32_t slot) const {
    const int32_t page = slot / store_->shape().P, per_extent = store_->extent_pages();
    const Extent& extent = *extents_[page / per_extent - first_].get();
    const int list = layer * store_->shape().G + head;
    CHECK(extent.held(list, page % per_extent));
    return extent.at(list, page % per_extent);
  }
  const PageStore* store_ = nullptr;
  int32_t first_ = 0;
  std::vector<ExtentUse> extents_;
};

}  // namespace kvilt
