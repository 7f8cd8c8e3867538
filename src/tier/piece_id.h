// tier/piece_id.h: ids of stored pieces: larger than those before, and used twice by chance only, by whatever process: a record
// that is put back from a backup takes no other piece's place.
// Idea:    milliseconds since 1970 above 21 random bits. Whoever hears an id of a clock that is ahead counts by that clock
//          from then on: were the next id just above the one that was heard, all who heard it would draw the same.
//          Processes that draw the same all the same, one of 2^21 pairs in a millisecond, cost a miss: what is stored is
//          compared with sums, marks, tokens and the digest of what it continues (piece_record.h).
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvilt {

inline constexpr uint64_t kMostPieceId = uint64_t{1} << 63;  // an id is below it, and never 0
inline constexpr int kPieceDiceBits = 21;

// Milliseconds since 1970 when the id was drawn, by the fastest clock that its drawer had heard of.
inline int64_t drawn_at_ms(uint64_t id) { return static_cast<int64_t>(id >> kPieceDiceBits); }

class PieceIds {
 public:
  // Larger than all before and all that were heard; only behind ids that leave no room below kMostPieceId it is not.
  uint64_t next();
  // Somebody uses this id.
  void heard(uint64_t id);

 private:
  std::atomic<uint64_t> last_{0};
  std::atomic<uint64_t> ahead_{0};  // milliseconds of the fastest clock before ours
};

}  // namespace kvilt
