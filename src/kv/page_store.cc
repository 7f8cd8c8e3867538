#include "kv/page_store.h"

#include <new>

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
    return PageStore(shape, pages, Buffer(static_cast<size_t>(pages * shape.page_bytes())));
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
  return static_cast<PageId>(touched_++);
}

void PageStore::free(PageId page) {
  DCHECK(page >= 0 && page < touched_);
  free_.push_back(page);
}

PageList::PageList(PageStore& store) : store_(store), lists_(static_cast<size_t>(store.shape().L * store.shape().G)) {}

PageList::~PageList() {
  for (const auto& list : lists_) {
    for (const PageId page : list) store_.free(page);
  }
}

int64_t PageList::pages_for(int layer, int32_t slots) const {
  const KvShape& shape = store_.shape();
  const int64_t have = static_cast<int64_t>(lists_[static_cast<size_t>(layer * shape.G)].size());
  const int64_t want = (slots + shape.P - 1) / shape.P;
  return want > have ? (want - have) * shape.G : 0;
}

void PageList::grow(int layer, int32_t slots) {
  const KvShape& shape = store_.shape();
  const auto want = static_cast<size_t>((slots + shape.P - 1) / shape.P);
  for (int head = 0; head < shape.G; ++head) {
    auto& list = lists_[static_cast<size_t>(layer * shape.G + head)];
    while (list.size() < want) {
      list.push_back(store_.alloc());
      ++total_;
    }
  }
}

}  // namespace kvilt
