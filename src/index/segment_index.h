// index/segment_index.h: finds known pieces anywhere in a prompt, at any offset and in any order.
// Idea:        windows of W tokens of each segment are indexed at multiples of W (and its last W tokens); a rolling
//              hash slides over the prompt token by token. A hit is compared token by token and extended to both sides
//              up to the last equal token. Marked parts of segments have a key of their whole content and are found at
//              any length. Text that is cached often costs no more to find: of windows with equal surroundings (twins)
//              one is looked at. docs/design/finding.md has an example and the bytes of the keys.
// Source:      rsync and Karp-Rabin (docs/papers.md#finding).
// Invariants:  nothing is returned that was not compared; a segment of another domain is never returned.
// Guarantee:   a part of 2W - 1 tokens or more that prompt and segment share contains an indexed window, so it is
//              found. Two limits bound the work: of a window that occurs in more than kMaxHits different surroundings
//              the most recent ones are tried; and where a text repeats itself so much that the credit is spent, what
//              is covered already is not compared again for something longer.
// Threads:     one owner; find() is const and keeps nothing.
// Cost:        a prompt token costs one hash step, one table probe and at most kCreditPerToken compared tokens, besides
//              those that the found pieces need themselves: repetition, in prompt or cache, cannot make it quadratic.
// Not here:    exact prefixes (chain_index.h), the choice among overlapping candidates (coverage.h).
#pragma once

#include <span>
#include <vector>

#include "base/runs.h"
#include "index/coverage.h"
#include "index/domains.h"
#include "index/posting_table.h"
#include "index/rolling_hash.h"
#include "index/segment_table.h"

namespace kvilt {

// What a search did; for tests, metrics and benchmarks.
struct SearchCost {
  int64_t probes = 0;    // table look-ups
  int64_t hits = 0;      // postings looked at
  int64_t compared = 0;  // token ids compared
};

class SegmentIndex {
 public:
  static constexpr int kMaxHits = 8;
  static constexpr int kMaxTwinsTried = 32;
  static constexpr int64_t kCreditPerToken = 256, kFirstCredit = 4096;

  SegmentIndex(const HashSecret& secret, int32_t window, uint64_t key_mask)
      : secret_(secret), hash_(secret, window), key_mask_(key_mask) {}

  void insert(SegmentTable& segments, uint32_t slot, const Digest& domain);  // what of it is not there
  void erase(SegmentTable& segments, uint32_t slot, const Digest& domain);
  // The segment is about to keep its first `tokens` only: what has to do with the others leaves. insert() follows.
  void erase_end(SegmentTable& segments, uint32_t slot, const Digest& domain, int32_t tokens);
  void add_mark(SegmentTable& segments, uint32_t slot, const Digest& domain, Run mark);

  struct Query {
    std::span<const int32_t> prompt;
    int32_t from = 0;
    DomainId domain = 0;
    const Digest* digest = nullptr;  // of the domain
    int32_t min_tokens = 0;
    std::span<const Run> marks;  // sorted, disjoint; others are ignored
  };
  // Every known part of prompt[from, size) that is marked or has min_tokens. Some may overlap or be inside others.
  std::vector<Candidate> find(const SegmentTable& segments, const Query& query, SearchCost& cost) const;

  int32_t window() const { return hash_.window(); }
  size_t bytes() const { return windows_.bytes() + marks_.bytes(); }

 private:
  class Search;

  uint64_t window_key(uint64_t hash, uint64_t domain) const { return scramble(hash ^ domain) & key_mask_; }
  uint64_t mark_key(const Digest& domain, std::span<const int32_t> ids) const;
  bool are_twins(const SegmentTable& segments, Posting a, Posting b) const;
  void replace_by_twin(const SegmentTable& segments, uint64_t key, Posting leaving);
  template <class Visitor>
  void each_window(const SegmentRecord& segment, const Digest& domain, int32_t first, Visitor&& visitor) const;

  HashSecret secret_;
  RollingHash hash_;
  uint64_t key_mask_;
  PostingTable windows_, marks_;
};

}  // namespace kvilt
