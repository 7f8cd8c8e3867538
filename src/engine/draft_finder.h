// engine/draft_finder.h: what may follow the last token of one request: a place where the same tokens stood before, in
// its prompt, in its answer so far, or in a cached text, and what came after them there (docs/design/drafts.md).
// Idea:       a place that was right stays until it is wrong. After an edit (a renamed function) the old text mostly goes
//             on: the place moves to behind the changed token, and to where the next tokens stand again. How often the
//             next token was right is counted by kind of place, also when nothing is drafted, so that nothing has to be
//             tried to be learned.
// Source:     prompt lookup and n-gram lookup decoding; SuffixDecoding (docs/papers.md#drafts).
// Invariants: a draft is a guess: it decides how fast an answer comes, never what it says.
// Threads:    the engine thread.
// Cost:       two hashed writes a token and some 1 us a look-up; 16 to 32 bytes a token of prompt and answer, from the
//             first look on.
// Not here:   whether more rows pay (draft_length.h), cached texts (index/continuations.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "index/content_index.h"

namespace kvilt {

// How often the next token at a place was right, by how much was matched there.
class HitRates {
 public:
  // After an edit: nothing matched again, few tokens did; then by the length of the match, own text and cached text.
  enum Kind : uint8_t { kBehindEdit, kAfterEdit, kOwn, kCached = kOwn + 5, kKinds = kCached + 5 };
  static Kind kind_of(int32_t matched, bool cached, bool edit);

  HitRates();
  double at(Kind kind) const { return counts_[kind].hits / counts_[kind].all; }
  void add(Kind kind, bool hit);

 private:
  struct Counts {
    double hits = 0, all = 0;  // of the last thirty or so
  };
  std::array<Counts, kKinds> counts_;
};

class DraftFinder {
 public:
  static constexpr int kShort = 3, kLong = 8;
  // Tokens behind a wrong one among which the text is looked for again, and how long.
  static constexpr int32_t kEdit = 24;

  explicit DraftFinder(uint64_t secret) : secret_(secret) {}

  // Where drafts come from: the request's own tokens, and the cached texts of its domains.
  struct Texts {
    std::span<const int32_t> own;
    const ContentIndex* cached = nullptr;  // null: none
    DomainId exact = 0, approximate = 0;
  };
  // Reads the tokens that came since the last time.
  void read(const Texts& texts);
  // Appends tokens to `draft`, up to `most`, while worth(chance that it and all before it are right). Behind tokens that
  // are in it already only what followed the same ones.
  void propose(const Texts& texts, int most, FunctionRef<bool(double)> worth, std::vector<int32_t>& draft);

  size_t bytes() const { return (long_.capacity() + short_.capacity()) * sizeof(int32_t); }

 private:
  // The next token is number `next` of the segment (0: of the own tokens).
  struct Place {
    SegmentId segment = 0;
    int32_t next = 0, matched = 0;
    bool edit = false;  // no match led to it: an edit was before
    HitRates::Kind kind(int32_t more = 0) const { return HitRates::kind_of(matched + more, segment != 0, edit); }
  };
  std::span<const int32_t> text_of(const Place& place, const Texts& texts) const {
    return place.segment == 0 ? texts.own : texts.cached ? texts.cached->text(place.segment) : Texts{}.own;
  }
  void index(std::span<const int32_t> own, size_t end);
  void follow(const Texts& texts, size_t at);
  void look(const Texts& texts);
  std::optional<Place> after_edit(const Texts& texts) const;
  std::optional<Place> find_own(const std::vector<int32_t>& table, std::span<const int32_t> own, size_t n) const;

  uint64_t secret_;
  size_t read_ = 0;
  std::vector<int32_t> long_, short_;  // by key: the place after the latest such tokens
  std::optional<Place> place_;
  std::optional<Place> broken_;  // where the text left it
  int32_t broken_for_ = 0;       // tokens since
  HitRates rates_;
};

}  // namespace kvilt
