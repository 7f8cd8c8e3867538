#include "kv/run_cache.h"

#include "base/check.h"

namespace kvilt {

void RunCache::insert(std::shared_ptr<const KvRun> run) {
  CHECK(!by_id_.count(run->id));
  tokens_ += static_cast<int64_t>(run->tokens.size());
  const RunId id = run->id;
  by_id_[id] = order_.insert(order_.end(), std::move(run));
}

std::shared_ptr<const KvRun> RunCache::find(RunId id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : *it->second;
}

void RunCache::touch(RunId id) {
  const auto it = by_id_.find(id);
  if (it != by_id_.end()) order_.splice(order_.end(), order_, it->second);
}

std::optional<RunId> RunCache::evict() {
  if (order_.empty()) return std::nullopt;
  auto victim = order_.begin();
  for (auto it = order_.begin(); it != order_.end(); ++it) {
    if (it->use_count() == 1) {  // not placed by a running sequence: dropping it may free pages now
      victim = it;
      break;
    }
  }
  const RunId id = (*victim)->id;
  erase(id);
  return id;
}

void RunCache::erase(RunId id) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return;
  tokens_ -= static_cast<int64_t>((*it->second)->tokens.size());
  order_.erase(it->second);
  by_id_.erase(it);
}

}  // namespace kvilt
