#include "tier/piece_id.h"

#include <chrono>

#include "base/keyed_hash.h"

namespace kvilt {
namespace {

uint64_t milliseconds_now() {
  using std::chrono::milliseconds;
  const auto now = std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  return static_cast<uint64_t>(now.count());
}

void raise(std::atomic<uint64_t>& to, uint64_t least) {
  uint64_t before = to;
  while (before < least && !to.compare_exchange_weak(before, least)) {
  }
}

}  // namespace

uint64_t PieceIds::next() {
  const uint64_t dice = HashSecret::random().word(0) & ((uint64_t{1} << kPieceDiceBits) - 1);
  const uint64_t now = milliseconds_now();
  const uint64_t drawn = (now + ahead_) << kPieceDiceBits | dice;
  uint64_t before = last_, next = 0;
  do {
    next = drawn > before ? drawn : before + 1 + dice;
    if (next >= kMostPieceId) return (now << kPieceDiceBits | dice) % kMostPieceId;
  } while (!last_.compare_exchange_weak(before, next));
  return next;
}

void PieceIds::heard(uint64_t id) {
  const uint64_t theirs = id >> kPieceDiceBits, now = milliseconds_now();
  if (theirs > now) raise(ahead_, theirs - now);
  raise(last_, id);
}

}  // namespace kvilt
