// index/content_index.h: finds what is known in a prompt: its longest exact prefix, and known pieces in the rest.
// Role:        the engine inserts each segment whose KV it caches, erases what it evicts, and asks once per request.
// Idea:        exact prefixes are found by chained block keys (chain_index.h), pieces by a rolling hash over windows
//              (segment_index.h), documents without other text in their KV by what stood before them (clean_pieces.h).
//              docs/design/finding.md walks through an example and gives the bytes of every key.
// Invariants:  every answer was compared token by token and is of the asked domain; approximate segments are never a
//              prefix.
// Threads:     owned by one thread; const methods have no hidden state.
// Cost:        less than 0.1 us per prompt token at a million cached tokens (docs/design/finding.md#cost).
//              What may follow a text's last tokens is asked with every token of an answer (continuations.h).
// Not here:    the KV of a segment (kv/), eviction (engine/content_cache.h), what is done with a piece (policy/).
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/keyed_hash.h"
#include "base/runs.h"
#include "index/cached_segment.h"
#include "index/chain_index.h"
#include "index/clean_pieces.h"
#include "index/continuations.h"
#include "index/domains.h"
#include "index/index_teller.h"
#include "index/near_index.h"
#include "index/segment_index.h"
#include "index/segment_table.h"

namespace kvilt {

struct ContentIndexOptions {
  int32_t window = 16;  // W, 4..64: pieces of 2W - 1 tokens or more are always found; smaller windows take more memory
  int key_bits = 64;    // fewer only in tests, to force collisions

  // The window for a shortest piece of min_tokens. Below 7 tokens nothing can be promised: the window stays at 4.
  static ContentIndexOptions for_min_tokens(int32_t min_tokens);
};

class ContentIndex {
 public:
  explicit ContentIndex(const HashSecret& secret, ContentIndexOptions options = {});

  // A small, stable id of the triple; never 0, never reused. A domain without segments may be forgotten when thousands
  // of others were named since (Domains::kMaxIdle). Its id then finds and takes nothing; its name gets a new id.
  DomainId domain(std::string_view fingerprint, std::string_view name_space, std::string_view salt,
                  std::string_view tenant = {});

  // What names the domain in other processes with the same secret, and back. Null: it was forgotten.
  const Digest* domain_digest(DomainId id) const { return domains_.digest(id); }
  DomainId domain(const Digest& digest) { return domains_.id(digest); }

  // REQUIRES: id is neither 0 nor known; 0 <= parent_tokens <= the parent's size where the parent is known. An exact
  // segment whose parent is not (or no longer) in the tree of exact segments is never a prefix; pieces of it are found.
  // False: it cannot be found at all, since its domain was forgotten, or as a chain, since its parent is gone.
  bool insert(SegmentId id, SegmentInfo info);
  // Nothing happens for an unknown id. Chains through the segment are no longer found as a prefix; pieces of the
  // segments that continued it still are. Returns these: what has left the tree besides it.
  std::vector<SegmentId> erase(SegmentId id);
  // Keeps the segment's first `tokens` tokens, the marks in them and what continues them. Returns what else has left the
  // tree. REQUIRES: the segment is known; 0 < tokens <= its size.
  std::vector<SegmentId> truncate(SegmentId id, int32_t tokens);
  // Marks tokens [begin, end) of the segment: where a mark of a prompt has the same content, they are found at any
  // length. REQUIRES: the segment is known, 0 <= begin <= end <= its size.
  void add_mark(SegmentId id, int32_t begin, int32_t end);

  // The segment holds prompt[mark) from token `offset` on, computed exactly behind prompt[0, mark.begin) and nothing else:
  // a clean copy (clean_pieces.h). REQUIRES: the segment is known and holds it.
  void add_clean(SegmentId id, int32_t offset, std::span<const int32_t> prompt, Run mark);

  // The same, as clean_notes() says it. REQUIRES: the segment is known and holds the note's tokens.
  void add_clean(SegmentId id, const CleanNote& note);
  std::vector<CleanNote> clean_notes(SegmentId id) const;  // of what it holds
  // From now on the listener hears of every change (index_listener.h); null: nobody does. It is not told what is there.
  void listen(IndexListener* listener) { teller_.listen(listener); }
  // Tells the listener everything again, from the start: tell_more() does about so many tokens, and returns whether more
  // are left.
  void tell_again() { teller_.start_round(); }
  bool tell_more(int64_t tokens);
  // The keys of a segment's blocks (ChainIndex::keys). None for an unknown id.
  std::vector<std::pair<uint64_t, int32_t>> block_keys(SegmentId id, Run tokens) const;
  // The keys of all blocks of 16 tokens that the chains of the tree have. For tests: it walks over everything.
  std::vector<uint64_t> block_keys() const;

  // The longest exact prefix of prompt[0, limit): contiguous pieces from position 0 on, along one chain of parents. from:
  // how far it was known to reach, of the same prompt and domain: a prefix that grows is hashed once (ChainIndex::find).
  std::vector<Piece> find_prefix(std::span<const int32_t> prompt, DomainId domain, int32_t limit,
                                 const ChainEnd& from = {}, SearchCost* cost = nullptr) const;

  // Known pieces of prompt[from, size): sorted and disjoint; each is extended to both sides as far as the tokens are
  // equal, unless it is cut where it overlaps another. Two kinds are found: parts that equal a part of a segment, of
  // max(min_tokens, 2 * window - 1) tokens or more (see the guarantee in segment_index.h); and each of `marks` (sorted,
  // disjoint ranges of the prompt) whose content was marked in a segment, at any length. All tokens of what is found
  // are covered, but for up to half of min_tokens where only they would need one more piece. A piece has at least
  // min_tokens tokens, except marks, and pieces that were cut (they keep at least half).
  std::vector<Piece> find_pieces(std::span<const int32_t> prompt, int32_t from, DomainId domain, int32_t min_tokens,
                                 std::span<const Run> marks, SearchCost* cost = nullptr) const;

  // Each of `marks` (sorted, disjoint ranges of the prompt) that has a clean copy, whole: one whose KV was computed from
  // tokens of this very prompt alone.
  std::vector<Piece> find_clean(std::span<const int32_t> prompt, DomainId domain, std::span<const Run> marks) const;

  // From now on near duplicates of segments can be found. Those that are known already come a part at a time: near_more()
  // takes about so many tokens more, the last slots first, and returns whether any are left. Before that they cost
  // nothing.
  void keep_near();
  bool near_more(int64_t tokens);
  bool near_waits() const { return near_left_ > 0; }
  bool keeps_near() const { return near_.has_value(); }
  size_t near_postings() const { return near_ ? near_->postings() : 0; }
  int64_t near_changes() const { return near_ ? near_->changes() : 0; }  // of its postings, for tests
  struct NearQuery {
    std::span<const int32_t> prompt;
    std::span<const Run> within;   // normal: only here
    std::span<const Piece> known;  // sorted, disjoint, of known segments: not here
    int32_t least = 0, together = 0;
  };
  // Where the text nearly repeats a segment: its runs of `least` equal tokens or more, which have `together` tokens with
  // their neighbours (near_index.h), `known` ones included. Sorted and disjoint; one that was cut where it overlaps
  // another keeps at least half of `least`. Empty without keep_near().
  std::vector<Piece> find_near(const NearQuery& query, DomainId domain, SearchCost* cost = nullptr) const;

  // From now on continuations can be found, in segments too that are known already. Before that they cost nothing.
  void keep_continuations();
  // What followed the text's last tokens in a segment of the domain (continuations.h); nothing without
  // keep_continuations().
  std::optional<Continuation> find_continuation(std::span<const int32_t> text, DomainId domain) const;
  // The segment's tokens; empty if it has left.
  std::span<const int32_t> text(SegmentId id) const;

  // Of the tokens right before the piece in the prompt, how many stood right before it where its KV was computed, as far
  // as that is known; INT32_MAX: all, from position 0 on. It stops at `limit`.
  int32_t shared_context(std::span<const int32_t> prompt, const Piece& piece, int32_t limit) const;

  // Whether the piece's KV was computed behind the prompt's own beginning: all that stands before it is equal in both, but
  // for at most `apart` tokens right before it in either, and `apart` tokens at least are equal.
  bool same_beginning(std::span<const int32_t> prompt, const Piece& piece, int32_t apart) const;

  const SegmentInfo& info(SegmentId id) const;  // REQUIRES: the segment is known
  Runs marks(SegmentId id) const;               // of its tokens, in the order in which they were added; the same
  bool contains(SegmentId id) const { return table_.find(id) != kNoSegment; }
  // Whether find_prefix can return a piece of the segment.
  bool is_prefix(SegmentId id) const;
  size_t segments() const { return table_.size(); }
  size_t tokens() const { return tokens_; }
  size_t bytes() const;
  const SeasonedCount& seasoned() const { return seasoned_; }

 private:
  template <class Visit>
  bool each_before(const Piece& piece, Visit visit) const;
  void count_seasoned(const SegmentInfo& info, int sign);
  ToldDomain told_domain(const SegmentInfo& info) const;
  std::vector<Piece> pieces_of(std::vector<Candidate> candidates, int32_t least) const;
  SegmentTable table_;
  Domains domains_;
  SegmentIndex segments_;
  ChainIndex chains_;
  CleanPieces clean_;
  IndexTeller teller_;
  std::optional<NearIndex> near_;
  uint32_t near_left_ = 0;  // slots before this one may hold segments that near_ does not have yet
  std::optional<Continuations> continuations_;
  const HashSecret secret_;
  const uint64_t key_mask_;
  size_t tokens_ = 0;
  SeasonedCount seasoned_;
};

}  // namespace kvilt
