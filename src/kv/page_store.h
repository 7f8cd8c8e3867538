// kv/page_store.h: the bounded pool of pages. A page holds P slots of K and V of ONE (layer, KV head): first P keys,
// then P values, as rows of a KV type (tensor/kv_row.h). A head can so keep less than another in real bytes.
// Source:     SegPagedAttention in RedKnot (docs/papers.md#redknot); docs/design/kv.md#from-the-pool-up.
// Invariants: a page has one owner (a PageList); sharing is by sharing the owner. Memory is committed when first
//             touched.
// Threads:    the engine thread.
// Cost:       alloc and free are O(1).
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "kvilt/result.h"
#include "tensor/kv_row.h"
#include "tensor/view.h"

namespace kvilt {

using PageId = int32_t;

struct KvShape {
  int L = 0, G = 0, E = 0;
  int P = 32;  // slots of a page
  DType dtype = DType::kF32;
  int64_t row_bytes() const { return kv_row_bytes(dtype, E); }  // one key
  int64_t page_bytes() const { return 2 * P * row_bytes(); }
  int64_t token_bytes() const { return 2 * row_bytes() * L * G; }
};

class PageStore {
 public:
  // Errors: kInvalidArgument (bytes hold fewer than L * G pages), kExhausted (the system refuses the address range).
  static Result<PageStore> create(const KvShape& shape, int64_t bytes);

  const KvShape& shape() const { return shape_; }
  int64_t pages() const { return pages_; }
  int64_t free_pages() const { return static_cast<int64_t>(free_.size()) + pages_ - touched_; }

  PageId alloc();  // REQUIRES: free_pages() > 0
  void free(PageId page);

  // The page's P keys, and its P values: rows of row_bytes().
  std::byte* k(PageId page) const { return arena_.as<std::byte>() + page * shape_.page_bytes(); }
  std::byte* v(PageId page) const { return k(page) + shape_.P * shape_.row_bytes(); }

 private:
  PageStore(const KvShape& shape, int64_t pages, Buffer arena)
      : shape_(shape), pages_(pages), arena_(std::move(arena)) {}
  KvShape shape_;
  int64_t pages_ = 0;
  int64_t touched_ = 0;  // pages [touched_, pages_) were never handed out
  std::vector<PageId> free_;
  Buffer arena_;
};

// The pages of one request's own K and V: per (layer, KV head) a list by slot / P, in which pages may be missing, since
// a head that keeps less than another holds fewer (kv/page_table.h says which). It also owns spare pages, which are
// reserved and wait to be held. All of them go back to the store when the list dies. Neither copied nor moved.
class PageList {
 public:
  explicit PageList(PageStore& store);
  ~PageList();
  PageList(const PageList&) = delete;
  PageList& operator=(const PageList&) = delete;

  bool held(int layer, int head, int32_t page) const {
    const auto& pages = list(layer, head).pages;
    return page < static_cast<int32_t>(pages.size()) && pages[page] != kNoPage;
  }
  int64_t held(int layer, int head) const { return list(layer, head).held; }
  int32_t pages_of(int32_t slots) const { return (slots + store_.shape().P - 1) / store_.shape().P; }

  // Page number `page` of the list, taken from the spare ones if there are any. REQUIRES: it is missing; there is a
  // spare or a free page.
  void hold(int layer, int head, int32_t page);
  // Gives the page back: to the spare ones while they are fewer than reserved, else to the store. REQUIRES: it is held.
  void drop(int layer, int head, int32_t page);
  // Holds every page of slots [0, slots) that is after all held ones. REQUIRES: no page is missing; there are enough
  // spare or free ones.
  void grow(int layer, int head, int32_t slots);

  // Makes the number of spare pages `pages`. REQUIRES: the store has pages - spare() free ones.
  void reserve(int64_t pages);
  int64_t spare() const { return static_cast<int64_t>(spare_.size()); }

  std::byte* k(int layer, int head, int32_t slot) const { return at(store_.k(page(layer, head, slot)), slot); }
  std::byte* v(int layer, int head, int32_t slot) const { return at(store_.v(page(layer, head, slot)), slot); }
  int64_t pages() const { return total_; }  // held and spare
  PageStore& store() const { return store_; }

 private:
  static constexpr PageId kNoPage = -1;
  struct List {
    std::vector<PageId> pages;
    int64_t held = 0;
  };
  const List& list(int layer, int head) const { return lists_[layer * store_.shape().G + head]; }
  List& list(int layer, int head) { return lists_[layer * store_.shape().G + head]; }
  PageId take();
  PageId page(int layer, int head, int32_t slot) const {
    const int32_t page = slot / store_.shape().P;
    CHECK(held(layer, head, page));  // its head may have dropped the key; never read a stranger's page
    return list(layer, head).pages[page];
  }
  std::byte* at(std::byte* base, int32_t slot) const {
    return base + slot % store_.shape().P * store_.shape().row_bytes();
  }

  PageStore& store_;
  std::vector<List> lists_;  // L * G
  std::vector<PageId> spare_;
  int64_t reserved_ = 0;
  int64_t total_ = 0;
};

}  // namespace kvilt
