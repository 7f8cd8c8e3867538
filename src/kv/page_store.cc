#include "kv/page_store.h"

#include <new>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace kvilt {

Result<PageStore> PageStore::create(const KvShape& shape, int64_t bytes) {
  CHECK(shape.L > 0 && shape.G > 0 && shape.E > 0 && shape.P > 0);
  const int64_t pages = std::min<int64_t>(bytes / shape.page_bytes(), INT32_MAX);
  if (pages < shape.L * shape.G) {
    return error(Code::kInvalidArgument, "KV pool of {} bytes holds {} pages; this model needs at least {} ({} bytes)",
                 bytes, pages, shape.L * shape.G, shape.L * shape.G * shape.page_bytes());
  }
  try {
    return PageStore(shape, pages, Buffer(pages * shape.page_bytes()));
  } catch (const std::bad_alloc&) {
    return error(Code::kExhausted, "cannot reserve {} bytes for the KV pool; ask for less (--kv-bytes)", bytes);
  }
}

PageId PageStore::alloc() {
  if (!free_.empty()) {
    const PageId page = free_.back();
    free_.pop_back();
    return page;
  }
  CHECK(touched_ < pages_);
  const auto all = static_cast<size_t>(touched_) + 1;  // destructors give pages back: free() must not allocate
  if (free_.capacity() < all) free_.reserve(2 * all);
  return static_cast<PageId>(touched_++);
}

void PageStore::free(PageId page) {
  DCHECK(page >= 0 && page < touched_);
  free_.push_back(page);
}

PageList::PageList(PageStore& store) : store_(store), lists_(store.shape().L * store.shape().G) {}

PageList::~PageList() {
  for (const List& list : lists_) {
    for (const PageId page : list.pages) {
      if (page != kNoPage) store_.free(page);
    }
  }
  for (const PageId page : spare_) store_.free(page);
}

PageId PageList::take() {
  if (spare_.empty()) {
    const PageId page = store_.alloc();
    ++total_;
    return page;
  }
  const PageId page = spare_.back();
  spare_.pop_back();
  return page;
}

void PageList::hold(int layer, int head, int32_t page) {
  DCHECK(!held(layer, head, page));
  List& list = this->list(layer, head);
  if (page >= static_cast<int32_t>(list.pages.size())) list.pages.resize(page + 1, kNoPage);
  list.pages[page] = take();
  ++list.held;
}

void PageList::drop(int layer, int head, int32_t page) {
  CHECK(held(layer, head, page));
  List& list = this->list(layer, head);
  const PageId id = std::exchange(list.pages[page], kNoPage);
  --list.held;
  if (spare() < reserved_) {
    spare_.push_back(id);
  } else {
    store_.free(id);
    --total_;
  }
}

void PageList::grow(int layer, int head, int32_t slots) {
  List& list = this->list(layer, head);
  const auto want = static_cast<size_t>(pages_of(slots));
  while (list.pages.size() < want) {
    list.pages.push_back(kNoPage);  // first, since it may throw: a page that was taken must be in a list
    list.pages.back() = take();
    ++list.held;
  }
}

void PageList::reserve(int64_t pages) {
  reserved_ = pages;
  while (spare() > pages) {
    store_.free(spare_.back());
    spare_.pop_back();
    --total_;
  }
  while (spare() < pages) {
    spare_.reserve(static_cast<size_t>(pages));
    spare_.push_back(store_.alloc());
    ++total_;
  }
}

}  // namespace kvilt
