// kv/segment_cache.h: the cached segments by id, in order of last use. It keeps them alive; index/ finds them.
// Invariants: a segment that a sequence has placed stays in memory even when it is evicted here.
// Threads:    the engine thread.
// Cost:       insert, find, touch and erase are O(1); evict and reclaimable go through the segments, oldest first.
// Not here:   which segments are touched: ContentCache touches a chain's parent after its children, so that a parent is
//             never older than they are and leaves later (docs/design/kv.md#when-the-pool-is-full).
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <unordered_map>

#include "kv/page_table.h"

namespace kvilt {

class SegmentCache {
 public:
  SegmentId next_id() { return ++last_id_; }
  void insert(std::shared_ptr<const KvSegment> segment);      // most recently used
  std::shared_ptr<const KvSegment> find(SegmentId id) const;  // null if evicted
  void touch(SegmentId id);  // makes it the most recently used; unknown ids are ignored
  // Pages that evicting would free now, counted until there are `enough`: those of the page lists whose segments are
  // all here and not placed anywhere.
  int64_t reclaimable(int64_t enough) const;
  // Drops the least recently used segment that no sequence has placed and whose page list only cached segments share.
  // When there is none, drops the least recently used one. Null when the cache is empty.
  std::optional<SegmentId> evict();
  void erase(SegmentId id);  // an unknown id is ignored
  bool empty() const { return order_.empty(); }

  int64_t segments() const { return static_cast<int64_t>(by_id_.size()); }
  int64_t tokens() const { return tokens_; }

 private:
  using Order = std::list<std::shared_ptr<const KvSegment>>;
  Order order_;  // least recently used first
  std::unordered_map<SegmentId, Order::iterator> by_id_;
  std::unordered_map<const PageList*, int64_t> sharing_;  // how many cached segments share a page list
  SegmentId last_id_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace kvilt
