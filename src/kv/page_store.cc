#include "kv/page_store.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
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

void PageStore::touch(int64_t begin, int64_t end) const {
#ifdef MADV_POPULATE_WRITE
  const int64_t bytes = pages_ * shape_.page_bytes();
  const auto system_page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = [&](int64_t at, uintptr_t round_up) {
    const auto byte = reinterpret_cast<uintptr_t>(arena_.as<std::byte>() + std::clamp<int64_t>(at, 0, bytes));
    return (byte + round_up) / system_page * system_page;
  };
  const uintptr_t from = address(begin, system_page - 1), to = address(end, 0);
  if (from < to) (void)::madvise(reinterpret_cast<void*>(from), to - from, MADV_POPULATE_WRITE);
#endif
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
  if (zeroes_) std::memset(k(page), 0, static_cast<size_t>(shape_.page_bytes()));
  free_.push_back(page);
}

PageList::PageList(PageStore& store)
    : store_(store), extent_pages_(store.extent_pages()), lists_(store.shape().L * store.shape().G) {}

int64_t PageList::unshared_pages() const {
  int64_t pages = spare();
  for (const ExtentUse& extent : extents_) pages += extent->users() == 1 ? extent->pages() : 0;
  return pages;
}

PageList::~PageList() {
  for (const PageId page : spare_) store_.free(page);
  while (!extents_.empty()) extents_.pop_back();  // what comes last becomes idle, and is evicted, first
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
  while (page / extent_pages_ >= static_cast<int32_t>(extents_.size())) {
    extents_.emplace_back();  // first, since it may throw: an extent must be in a list
    try {
      extents_.back() = ExtentUse(new Extent(store_, static_cast<int32_t>(extents_.size()) - 1));
    } catch (const std::bad_alloc&) {
      extents_.pop_back();
      throw;
    }
    extents_.back()->give_to(owner_);
  }
  extents_[page / extent_pages_]->put(list_of(layer, head), page % extent_pages_, take());
  List& list = lists_[list_of(layer, head)];
  list.end = std::max(list.end, page + 1);
  ++list.held;
}

void PageList::drop(int layer, int head, int32_t page) {
  CHECK(held(layer, head, page));
  const PageId id = extents_[page / extent_pages_]->take(list_of(layer, head), page % extent_pages_);
  --lists_[list_of(layer, head)].held;
  if (spare() < reserved_) {
    spare_.push_back(id);
  } else {
    store_.free(id);
    --total_;
  }
}

void PageList::grow(int layer, int head, int32_t slots) {
  const int32_t want = pages_of(slots);
  for (int32_t page = lists_[list_of(layer, head)].end; page < want; ++page) hold(layer, head, page);
}

void PageList::shrink(int layer, int head, int32_t slots) {
  List& list = lists_[list_of(layer, head)];
  for (const int32_t want = pages_of(slots); list.end > want; --list.end) {
    if (held(layer, head, list.end - 1)) drop(layer, head, list.end - 1);
  }
}

void PageList::give_to(OwnerId owner) {
  owner_ = owner;
  for (const ExtentUse& extent : extents_) extent->give_to(owner);
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

PinnedPages::PinnedPages(const PageStore& store, int32_t first, std::span<const ExtentKeep> extents)
    : store_(&store), first_(first) {
  extents_.reserve(extents.size());
  for (const ExtentKeep& extent : extents) extents_.emplace_back(extent.get());
}

PinnedPages::~PinnedPages() {
  while (!extents_.empty()) extents_.pop_back();
}

}  // namespace kvilt
