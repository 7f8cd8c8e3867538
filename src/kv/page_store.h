// kv/page_store.h: the bounded pool of pages. A page holds P slots of K and V of ONE (layer, KV head): first P
// keys, then P values, as rows of a KV type (tensor/kv_row.h). That granularity lets a head keep less than another (RedKnot's SegPagedAttention) in real
// bytes.
// Invariants: a page has one owner (a PageList); sharing is by sharing the owner. Memory is committed when first
//             touched.
// Threads:    the engine thread.
// Cost:       alloc and free are O(1).
#pragma once

#include <cstdint>
#include <vector>

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

  // REQUIRES: free_pages() > 0.
  PageId alloc();
  void free(PageId page);

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

// The pages of one request's own K and V: per (layer, KV head) a list that grows with the layer's slots. Move-only
// owner.
class PageList {
 public:
  explicit PageList(PageStore& store);
  ~PageList();
  PageList(const PageList&) = delete;
  PageList& operator=(const PageList&) = delete;

  // Pages that grow(layer, slots) would take.
  int64_t pages_for(int layer, int32_t slots) const;
  // Makes room for `slots` slots at `layer`, all heads. REQUIRES: the store has pages_for(layer, slots) free pages.
  void grow(int layer, int32_t slots);

  std::byte* k(int layer, int head, int32_t slot) const { return at(store_.k(page(layer, head, slot)), slot); }
  std::byte* v(int layer, int head, int32_t slot) const { return at(store_.v(page(layer, head, slot)), slot); }
  int64_t pages() const { return total_; }
  PageStore& store() const { return store_; }

 private:
  PageId page(int layer, int head, int32_t slot) const {
    return lists_[static_cast<size_t>(layer * store_.shape().G + head)][static_cast<size_t>(slot / store_.shape().P)];
  }
  std::byte* at(std::byte* base, int32_t slot) const {
    return base + slot % store_.shape().P * store_.shape().row_bytes();
  }

  PageStore& store_;
  std::vector<std::vector<PageId>> lists_;  // L * G
  int64_t total_ = 0;
};

}  // namespace kvilt
