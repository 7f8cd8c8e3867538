// engine/ask_counter.h: how often requests asked for the same document; what idle work begins with.
// Idea:       a conversation's turns all hold its documents. It asks once: a prompt that goes on from one that was counted
//             is not counted again. Two equal prompts are two.
// Invariants: what is counted is bounded. When it is full, what was not asked for since it was full the last time is
//             forgotten: whoever names many documents once takes nothing from those that are asked for again.
// Threads:    the engine thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "index/cached_segment.h"

namespace kvilt {

class AskCounter {
 public:
  static constexpr size_t kMost = 4096;

  // One request that asks. Its prompt must outlive this.
  class Asker {
   public:
    Asker(const AskCounter& counter, std::span<const int32_t> prompt) : counter_(counter), prompt_(prompt) {}

   private:
    friend class AskCounter;
    // Of the prompt's first tokens; each is hashed once.
    const Digest& beginning(size_t tokens) {
      const auto known = std::ranges::find(beginnings_, tokens, &std::pair<size_t, Digest>::first);
      if (known != beginnings_.end()) return known->second;
      KeyedHash hash(counter_.secret_, "kvilt.asked by");
      return beginnings_.emplace_back(tokens, hash.add(prompt_.first(tokens)).finish()).second;
    }
    const AskCounter& counter_;
    const std::span<const int32_t> prompt_;
    std::vector<std::pair<size_t, Digest>> beginnings_;
    std::unordered_set<Digest, DigestHash> counted_;
  };

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
  // Once more, unless this conversation has asked before. Whether that is often.
  bool asked(const Digest& key, Asker& by) {
    Count& count = count_of(key);
    if (!has_asked(key, count, by)) ++count.times;
    return count.times >= often_;
  }
  // Once more. Whether it was never asked for before.
  bool first(const Digest& key) { return ++count_of(key).times == 1; }
  void forget(const Digest& key) { count_.erase(key), before_.erase(key); }
  void clear() { count_.clear(), before_.clear(); }

 private:
  static constexpr size_t kMostPrompts = 8;  // that are known again, of one document
  // A prompt that was counted. Its end tells nearly all others apart, without a hash of all of them.
  struct Earlier {
    size_t tokens = 0;
    uint64_t end = 0;
    Digest all{};
  };
  struct Count {
    int times = 0;
    std::vector<Earlier> by;
  };

  static uint64_t end_of_prompt(std::span<const int32_t> prompt) {
    uint64_t out = 0;
    for (const int32_t id : prompt.last(std::min<size_t>(prompt.size(), 16)))
      out = out * 0x9e3779b97f4a7c15u + static_cast<uint32_t>(id);
    return out;
  }
  // Whether the prompt goes on from one that was counted, or holds the document twice. If not, it is known from now on.
  bool has_asked(const Digest& key, Count& count, Asker& by) const {
    if (!by.counted_.insert(key).second) return true;
    const auto goes_on = [&](const Earlier& from) {
      return from.tokens < by.prompt_.size() && from.end == end_of_prompt(by.prompt_.first(from.tokens)) &&
             from.all == by.beginning(from.tokens);
    };
    if (std::ranges::any_of(count.by, goes_on)) return true;
    if (count.by.size() == kMostPrompts) count.by.erase(count.by.begin());
    count.by.push_back({by.prompt_.size(), end_of_prompt(by.prompt_), by.beginning(by.prompt_.size())});
    return false;
  }
  Count& count_of(const Digest& key) {
    if (const auto known = count_.find(key); known != count_.end()) return known->second;
    if (count_.size() >= kMost) before_ = std::exchange(count_, {});
    const auto before = before_.find(key);
    return count_[key] = before == before_.end() ? Count() : before->second;
  }

  const int often_;
  const HashSecret secret_ = HashSecret::random();
  std::unordered_map<Digest, Count, DigestHash> count_, before_;  // before_: until count_ was full
};

}  // namespace kvilt
