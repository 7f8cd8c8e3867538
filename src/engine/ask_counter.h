// engine/ask_counter.h: how often requests asked for the same document; what idle work begins with.
// Invariants: what is counted is bounded. When it is full, what was not asked for since it was full the last time is
//             forgotten: whoever names many documents once takes nothing from those that are asked for again.
// Threads:    the engine thread.
#pragma once

#include <span>
#include <unordered_map>
#include <utility>

#include "base/keyed_hash.h"
#include "index/cached_segment.h"

namespace kvilt {

class AskCounter {
 public:
  static constexpr size_t kMost = 4096;

  // often: so many times.
  explicit AskCounter(int often) : often_(often) {}

  // Names a document of a domain.
  Digest key(DomainId domain, std::span<const int32_t> document) const {
    return KeyedHash(secret_, "kvilt.asked").add(domain).add(document).finish();
  }
  // The same document behind what `before` names.
  Digest key(const Digest& before, std::span<const int32_t> document) const {
    return KeyedHash(secret_, "kvilt.asked behind").add(before).add(document).finish();
  }
  // Once more. Whether that is often.
  bool asked(const Digest& key) { return ++count_of(key) >= often_; }
  // Once more. Whether it was never asked for before.
  bool first(const Digest& key) { return ++count_of(key) == 1; }
  void forget(const Digest& key) { count_.erase(key), before_.erase(key); }
  void clear() { count_.clear(), before_.clear(); }

 private:
  int& count_of(const Digest& key) {
    if (const auto known = count_.find(key); known != count_.end()) return known->second;
    if (count_.size() >= kMost) before_ = std::exchange(count_, {});
    const auto before = before_.find(key);
    return count_[key] = before == before_.end() ? 0 : before->second;
  }

  const int often_;
  const HashSecret secret_ = HashSecret::random();
  std::unordered_map<Digest, int, DigestHash> count_, before_;  // before_: until count_ was full
};

}  // namespace kvilt
