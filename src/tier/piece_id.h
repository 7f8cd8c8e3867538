// tier/piece_id.h: ids of stored pieces: larger than those before, and never used twice, by whatever process: a record that
// is put back from a backup takes no other piece's place.
// Idea:    milliseconds since 1970 above 21 random bits. Two processes that draw the same, or a clock that was set back,
//          cost a miss: what is stored is compared with sums, marks and tokens.
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvilt {

inline constexpr uint64_t kMostPieceId = uint64_t{1} << 63;  // an id is below it, and never 0

// last: the largest that is known; it becomes the one that is returned.
uint64_t next_piece_id(std::atomic<uint64_t>& last);

}  // namespace kvilt
