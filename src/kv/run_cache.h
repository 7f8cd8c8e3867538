// kv/run_cache.h: the cached runs by id, in order of last use. It keeps them alive; the index (reuse/) finds them.
// Invariants: a run that a sequence has placed stays in memory even when evicted here. A chain's parent is touched
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

class RunCache {
 public:
  RunId next_id() { return ++last_id_; }
  void insert(std::shared_ptr<const KvRun> run);      // most recently used
  std::shared_ptr<const KvRun> find(RunId id) const;  // null if evicted
  void touch(RunId id);
  // Pages that evicting frees now, counted until there are `enough`: those of lists whose runs are all here and none
  // placed. Cost: O(runs), less where the oldest ones suffice.
  int64_t reclaimable(int64_t enough) const;
  // Drops the least recently used run whose pages nobody else holds; when all are held, the least recently used one.
  std::optional<RunId> evict();
  void erase(RunId id);  // an unknown id is ignored
  bool empty() const { return order_.empty(); }

  int64_t runs() const { return static_cast<int64_t>(by_id_.size()); }
  int64_t tokens() const { return tokens_; }

 private:
  using Order = std::list<std::shared_ptr<const KvRun>>;
  Order order_;  // least recently used first
  std::unordered_map<RunId, Order::iterator> by_id_;
  std::unordered_map<const PageList*, int64_t> sharing_;  // cached runs of each list
  RunId last_id_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace kvilt
