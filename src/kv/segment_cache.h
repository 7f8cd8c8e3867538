// kv/segment_cache.h: the cached segments by id, in order of last use. It keeps them alive; the index (policy/) finds them.
// Invariants: a segment that a sequence has placed stays in memory even when evicted here. A chain's parent is touched
// after its
//             children, so it is never older than they are and leaves later.
// Threads:    the engine thread.
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
  void touch(SegmentId id);
  // Pages that evicting frees now, counted until there are `enough`: those of lists whose segments are all here and none
  // placed. Cost: O(segments), less where the oldest ones suffice.
  int64_t reclaimable(int64_t enough) const;
  // Drops the least recently used segment whose pages nobody else holds; when all are held, the least recently used one.
  std::optional<SegmentId> evict();
  void erase(SegmentId id);  // an unknown id is ignored
  bool empty() const { return order_.empty(); }

  int64_t segments() const { return static_cast<int64_t>(by_id_.size()); }
  int64_t tokens() const { return tokens_; }

 private:
  using Order = std::list<std::shared_ptr<const KvSegment>>;
  Order order_;  // least recently used first
  std::unordered_map<SegmentId, Order::iterator> by_id_;
  std::unordered_map<const PageList*, int64_t> sharing_;  // cached segments of each list
  SegmentId last_id_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace kvilt
