// index/continuations.h: where in the cached texts the last tokens of a text stand too, so that what followed them there
// may follow here (docs/design/drafts.md).
// Idea:       two tables hold the latest place of each run of kLong and of kShort tokens. A segment that continues
//             another is read behind the end of that one: the first words of an answer are found behind the last ones of
//             its prompt.
// Invariants: what is found is in a segment of the asked domain, and was compared: the tokens before the place are the
//             text's last ones. Segments that have left are never read: their places are compared like all others, and
//             fail.
// Threads:    one owner.
// Cost:       two tables of 8 MiB, of which the system gives a page when it is first written; two writes a token, two
//             reads a look-up. They never grow, so that no insert pays for what is there.
// Not here:   the text of the running request (engine/draft_finder.h), whether a draft pays (engine/draft_length.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/keyed_hash.h"
#include "base/step_table.h"
#include "index/segment_table.h"

namespace kvilt {

// The token that follows is number `next` of the segment; the `matched` tokens before it (kMostMatched at most) are the
// last ones of the text.
struct Continuation {
  SegmentId segment = 0;
  int32_t next = 0, matched = 0;
};

// Two texts that share so many last tokens are as good as equal.
inline constexpr int32_t kMostMatched = 32;

class Continuations {
 public:
  static constexpr int kShort = 4, kLong = 8;
  static constexpr size_t kSlots = size_t{1} << 20;

  explicit Continuations(const HashSecret& secret);

  void insert(const SegmentTable& segments, uint32_t slot);
  // The place with the longest match; the latest of kLong before that of kShort. The segment has a token there.
  std::optional<Continuation> find(const SegmentTable& segments, std::span<const int32_t> text, DomainId domain) const;

  size_t bytes() const { return long_.bytes.size() + short_.bytes.size(); }

 private:
  struct Place {
    uint32_t slot_and_one = 0;  // 0: none
    int32_t offset = 0;
  };
  struct Table {
    Place& at(uint64_t key) { return static_cast<Place*>(bytes.data())[key & (kSlots - 1)]; }
    Place at(uint64_t key) const { return static_cast<const Place*>(bytes.data())[key & (kSlots - 1)]; }
    ZeroedBytes bytes{kSlots * sizeof(Place)};
  };
  uint64_t key(std::span<const int32_t> ids, DomainId domain) const;

  uint64_t secret_ = 0;
  Table long_, short_;
};

}  // namespace kvilt
