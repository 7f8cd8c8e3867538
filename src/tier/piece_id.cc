#include "tier/piece_id.h"

#include <algorithm>
#include <chrono>

#include "base/keyed_hash.h"

namespace kvilt {

uint64_t next_piece_id(std::atomic<uint64_t>& last) {
  using std::chrono::milliseconds;
  constexpr uint64_t kDice = (uint64_t{1} << 21) - 1;
  const auto now = std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  const uint64_t drawn =
      (static_cast<uint64_t>(now.count()) << 21 | (HashSecret::random().word(0) & kDice)) % kMostPieceId;
  uint64_t before = last, next = 0;
  do {
    next = std::max(before + 1, drawn);
  } while (!last.compare_exchange_weak(before, next));
  return next;
}

}  // namespace kvilt
