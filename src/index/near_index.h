// index/near_index.h: finds where a prompt nearly repeats a segment: a document with an edited sentence, a file with line
// numbers, notes in another order. What it proposes are runs of equal tokens between the changes, nothing else.
// Idea:        of any kGrams neighbouring grams of kGram tokens the one with the smallest key is kept: a MinHash of one
//              permutation over short windows, which both texts draw alike, so that 12 equal tokens in a row share a
//              key. A prompt's keys vote for segments; the best are aligned with it by short grams, run by run.
//              docs/design/finding.md#near-duplicates says why not by bands over windows of 64.
// Source:      MinHash (Broder 1997), winnowing (Schleimer et al. 2003); docs/papers.md#finding.
// Invariants:  nothing is returned that was not compared; a segment of another domain is never returned. What is kept of
//              a segment leaves with it. One that was not inserted may be erased and cut: nothing is kept of it.
// Threads:     one owner; find() is const and keeps nothing.
// Cost:        kept: about .22 postings a token (16 bytes). Asked, per token of text that is not known otherwise: a gram
//              hash, .22 look-ups and at most kCreditPerToken ids read: repetition cannot make it quadratic.
// Not here:    longer runs, marks (segment_index.h), the choice among overlapping candidates (coverage.h).
#pragma once

#include <span>
#include <vector>

#include "base/runs.h"
#include "index/coverage.h"
#include "index/domains.h"
#include "index/posting_table.h"
#include "index/rolling_hash.h"
#include "index/segment_index.h"
#include "index/segment_table.h"

namespace kvilt {

class NearIndex {
 public:
  static constexpr int32_t kGram = 5, kGrams = 8;
  static constexpr int kMaxHits = 8;  // segments with one key that get a vote: the newest
  static constexpr int64_t kCreditPerToken = 32, kFirstCredit = 16384;
  static constexpr int32_t kSeed = 4;  // tokens by which a segment is aligned; the shortest run that can be asked for

  NearIndex(const HashSecret& secret, uint64_t key_mask) : hash_(secret, kGram), key_mask_(key_mask) {}

  enum class Age { kNew, kOld };  // kOld: it comes behind all others that have a key of its
  // Nothing happens where it is there already.
  void insert(SegmentTable& segments, uint32_t slot, const Digest& domain, Age age = Age::kNew);
  void erase(SegmentTable& segments, uint32_t slot, const Digest& domain);
  // Of a segment that is about to keep its first `tokens` tokens. It costs what is cut.
  void truncate(SegmentTable& segments, uint32_t slot, const Digest& domain, int32_t tokens);

  struct Query {
    std::span<const int32_t> prompt;
    std::span<const Run> gaps;         // normal: only here
    std::span<const Candidate> known;  // found otherwise: they count as neighbours
    DomainId domain = 0;
    const Digest* digest = nullptr;  // of the domain
    int32_t least = 0;               // tokens of a run
    int32_t together = 0;            // and of runs of one segment that follow each other, at most so many tokens apart
  };
  // Runs of `least` equal tokens or more inside a gap. Of one segment those count that have `together` tokens with their
  // neighbours, or hold the segment whole. Some may overlap or be inside others.
  std::vector<Candidate> find(const SegmentTable& segments, const Query& query, SearchCost& cost) const;

  size_t bytes() const { return minima_.bytes(); }
  size_t postings() const { return minima_.size(); }
  int64_t changes() const { return changes_; }

 private:
  class Search;
  void add(std::span<const int32_t> ids, const Digest& domain, Age age, uint32_t slot, std::vector<uint32_t>& nodes);
  void remove(uint64_t key, uint32_t node);
  template <class Visitor>
  void each_minimum(std::span<const int32_t> ids, const Digest& domain, Visitor&& visitor) const;

  RollingHash hash_;
  uint64_t key_mask_;
  PostingTable minima_;
  int64_t changes_ = 0;  // postings that came and went
};

}  // namespace kvilt
