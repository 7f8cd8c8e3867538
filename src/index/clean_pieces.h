// index/clean_pieces.h: documents whose KV carries nobody else's words: what stood before them when they were computed is
// a beginning of the very prompt that asks.
// Why:        KV carries the text before it. That of a harmless document, computed behind an attacker's words, takes over
//             answers of others (HijackKV, docs/papers.md#clean-pieces). Whether a copy may be trusted depends on who
//             asks, so it is decided when a prompt asks and not when the copy is made.
// Idea:       a copy is known by the document's tokens, and by length and digest of all tokens before it. A prompt finds
//             it if its own beginning of that length has that digest. Then every token that went into the KV is one of
//             the prompt's own, whatever else is cached; and no other copy can stand in its way but by pushing it out of
//             the list.
// Invariants: digests are keyed with the secret of the index (base/keyed_hash.h): nobody can aim at one.
// Threads:    one owner.
// Cost:       find: one hash of each mark, one of the prompt up to its last mark at most, and kMaxCopies comparisons of
//             digests a mark. About 100 bytes a copy.
// Not here:   comparing the tokens and what segments hold (content_index.h), which copies are published
//             (engine/content_cache.h).
#pragma once

#include <span>
#include <vector>

#include "base/clean_note.h"
#include "base/keyed_hash.h"
#include "base/runs.h"
#include "base/step_map.h"
#include "index/cached_segment.h"

namespace kvilt {

class CleanPieces {
 public:
  static constexpr size_t kMaxCopies = 16;  // of one document in one domain; the oldest leaves

  explicit CleanPieces(const HashSecret& secret) : secret_(secret) {}

  // prompt[mark), computed exactly behind prompt[0, mark.begin), is in segment `id` from token `offset` on.
  void add(DomainId domain, std::span<const int32_t> prompt, Run mark, SegmentId id, int32_t offset);
  // The same, as notes() says it: `ids` are those of the note's tokens.
  void add(DomainId domain, std::span<const int32_t> ids, const CleanNote& note, SegmentId id);
  std::vector<CleanNote> notes(SegmentId id) const;
  void erase(SegmentId id);                     // nothing happens for an unknown id
  void truncate(SegmentId id, int32_t tokens);  // its copies that end later leave; the same

  // A piece for each of `marks` (sorted, disjoint) that is known behind a beginning of the prompt; of several the one
  // with most text before it.
  std::vector<Piece> find(DomainId domain, std::span<const int32_t> prompt, std::span<const Run> marks) const;

  size_t size() const { return copies_; }
  size_t bytes() const;

 private:
  struct Copy {
    int32_t before = 0;  // tokens
    Digest digest{};     // of them
    SegmentId segment = 0;
    int32_t offset = 0, count = 0;  // of its tokens
  };
  // Texts with equal keys share their copies: an answer is compared with the prompt (ContentIndex::find_clean).
  uint64_t text_key(DomainId domain, std::span<const int32_t> ids) const;
  // Of prompt[0, n) for each n of `lengths` (sorted).
  std::vector<Digest> beginnings(std::span<const int32_t> prompt, std::span<const int32_t> lengths) const;
  void drop(uint64_t text, SegmentId id, int32_t left = -1);

  HashSecret secret_;
  StepMap<std::vector<Copy>> by_text_;       // newest last
  StepMap<std::vector<uint64_t>> texts_of_;  // for erase()
  size_t copies_ = 0;
};

}  // namespace kvilt
