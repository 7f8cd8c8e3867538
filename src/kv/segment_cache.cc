#include "kv/segment_cache.h"

#include "base/check.h"

namespace kvilt {

void SegmentCache::insert(std::shared_ptr<const KvSegment> segment) {
  CHECK(!by_id_.count(segment->id));
  tokens_ += static_cast<int64_t>(segment->tokens.size());
  ++sharing_[segment->pages.get()];
  const SegmentId id = segment->id;
  by_id_[id] = order_.insert(order_.end(), std::move(segment));
}

std::shared_ptr<const KvSegment> SegmentCache::find(SegmentId id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : *it->second;
}

void SegmentCache::touch(SegmentId id) {
  const auto it = by_id_.find(id);
  if (it != by_id_.end()) order_.splice(order_.end(), order_, it->second);
}

int64_t SegmentCache::reclaimable(int64_t enough) const {
  std::unordered_map<const PageList*, int64_t> unused;  // by page list: segments seen so far that nobody has placed
  int64_t pages = 0;
  for (auto it = order_.begin(); it != order_.end() && pages < enough; ++it) {
    const auto& list = (*it)->pages;
    if (it->use_count() == 1 && ++unused[list.get()] == list.use_count()) pages += list->pages();
  }
  return pages;
}

std::optional<SegmentId> SegmentCache::evict() {
  if (order_.empty()) return std::nullopt;
  auto victim = order_.begin();
  for (auto it = order_.begin(); it != order_.end(); ++it) {
    const auto& list = (*it)->pages;  // not placed by a running sequence, and the sequence that wrote it has ended
    if (it->use_count() == 1 && sharing_.at(list.get()) == list.use_count()) {
      victim = it;
      break;
    }
  }
  const SegmentId id = (*victim)->id;
  erase(id);
  return id;
}

void SegmentCache::erase(SegmentId id) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return;
  tokens_ -= static_cast<int64_t>((*it->second)->tokens.size());
  const auto sharing = sharing_.find((*it->second)->pages.get());
  if (--sharing->second == 0) sharing_.erase(sharing);
  order_.erase(it->second);
  by_id_.erase(it);
}

}  // namespace kvilt
