// engine/ask_counter.h: how often requests asked for the same document; what idle work begins with.
// Invariants: what is counted is bounded; when it is full, all is counted anew.
// Threads:    the engine thread.
#pragma once

#include <span>
#include <unordered_map>

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
  bool asked(const Digest& key) {
    if (count_.size() >= kMost && !count_.contains(key)) count_.clear();
    return ++count_[key] >= often_;
  }
  // Once more. Whether it was never asked for before.
  bool first(const Digest& key) {
    asked(key);
    return count_[key] == 1;
  }
  void forget(const Digest& key) { count_.erase(key); }
  void clear() { count_.clear(); }

 private:
  const int often_;
  const HashSecret secret_ = HashSecret::random();
  std::unordered_map<Digest, int, DigestHash> count_;
};

}  // namespace kvilt
