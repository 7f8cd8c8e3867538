// index/content_index.h: finds what is known in a prompt: its longest exact prefix, and known pieces anywhere in the
// rest.
// Role:        the engine inserts each segment whose KV it caches, erases what it evicts, and asks once per request.
// Idea:        DESIGN 5; docs/design/finding.md walks through an example and gives the bytes of every key. Exact
//              prefixes go by chained block keys (chain_index.h), pieces by a rolling hash over windows
//              (segment_index.h).
// Invariants:  every answer was compared token by token and is of the asked domain; approximate segments are never a
//              prefix.
// Threads:     owned by one thread; const methods have no hidden state.
// Cost:        docs/design/finding.md; well below a microsecond a prompt token at a million cached tokens.
// Not here:    the KV of a segment, eviction, what is done with a piece.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "base/keyed_hash.h"
#include "base/runs.h"
#include "index/cached_segment.h"
#include "index/chain_index.h"
#include "index/domains.h"
#include "index/segment_index.h"
#include "index/segment_table.h"

namespace kvilt {

struct ContentIndexOptions {
  int32_t window = 16;  // W, 4..64: pieces of 2W - 1 tokens or more are always met; smaller windows take more memory
  int key_bits = 64;    // fewer only in tests, to force collisions

  // The window for a shortest piece of min_tokens. Below 7 tokens nothing can be promised: the window stays at 4.
  static ContentIndexOptions for_min_tokens(int32_t min_tokens);
};

class ContentIndex {
 public:
  explicit ContentIndex(const HashSecret& secret, ContentIndexOptions options = {});

  // Small, stable id of the triple; never 0, never reused. A domain without segments may be forgotten when thousands of
  // others were named since (Domains::kMaxIdle): it then finds and takes nothing until it is named again, under a new
  // id.
  DomainId domain(std::string_view fingerprint, std::string_view name_space, std::string_view salt);

  // REQUIRES: id is neither 0 nor known; 0 <= parent_tokens <= the parent's size where the parent is known. A segment whose
  // parent is not (or no longer) in the tree of exact segments is found as a segment only.
  void insert(SegmentId id, SegmentInfo info);
  // Nothing happens for an unknown id. Chains through the segment are no longer found; what continued it stays findable as
  // segments.
  void erase(SegmentId id);
  // Tokens [begin, end) of the segment are a marked segment: found at any length where a prompt's mark has the same
  // content. REQUIRES: the segment is known, 0 <= begin <= end <= its size.
  void add_mark(SegmentId id, int32_t begin, int32_t end);

  // The longest exact prefix of prompt[0, limit): pieces from position 0 on, contiguous, along one chain of parents.
  std::vector<Piece> find_prefix(std::span<const int32_t> prompt, DomainId domain, int32_t limit) const;

  // Known pieces of prompt[from, size): sorted, disjoint, each maximal to both sides unless cut where it meets another.
  // Met is every common segment of at least max(min_tokens, 2 * window - 1) tokens (see the guarantee in segment_index.h),
  // and every mark (sorted, disjoint ranges of the prompt) whose content was marked in a segment, at any length. Of a met
  // segment all is covered, except that a stretch of up to half of min_tokens may stay uncovered where it alone would need
  // a further piece. A piece has min_tokens or more, except marks and pieces cut where they meet (those keep at least
  // half).
  std::vector<Piece> find_segments(std::span<const int32_t> prompt, int32_t from, DomainId domain, int32_t min_tokens,
                                   std::span<const Run> marks, SearchCost* cost = nullptr) const;

  bool contains(SegmentId id) const { return table_.find(id) != kNoSegment; }
  // Whether find_prefix can return the segment.
  bool is_prefix(SegmentId id) const;
  size_t segments() const { return table_.size(); }
  size_t tokens() const { return tokens_; }
  size_t bytes() const;

 private:
  SegmentTable table_;
  Domains domains_;
  SegmentIndex segments_;
  ChainIndex chains_;
  size_t tokens_ = 0;
};

}  // namespace kvilt
