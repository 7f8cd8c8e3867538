// Ids are larger than all that were heard, and those who heard the same draw others.
#include "tier/piece_id.h"

#include <gtest/gtest.h>

#include <chrono>

#include <unordered_set>
#include <vector>

namespace kvilt {
namespace {

constexpr uint64_t kHour = uint64_t{3'600'000} << 21;

TEST(PieceIds, WhoHearsAClockThatIsAheadDrawsWhatOthersDoNot) {
  const uint64_t ahead = PieceIds().next() + kHour;
  std::vector<PieceIds> servers(50);
  std::unordered_set<uint64_t> drawn;
  for (PieceIds& one : servers) {
    one.heard(ahead);
    for (int i = 0; i < 3; ++i) {
      const uint64_t id = one.next();
      EXPECT_GT(id, ahead);
      EXPECT_LT(id, ahead + kHour) << "that clock's time, not far beyond it";
      drawn.insert(id);
    }
  }
  // 11,000 pairs of 2^21 values within some milliseconds: one that is equal is possible, half of them are not.
  EXPECT_GE(drawn.size(), 145u);
}

TEST(PieceIds, EachIsLargerThanTheOneBefore) {
  PieceIds ids;
  uint64_t last = 0;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t id = ids.next();
    EXPECT_GT(id, last);
    last = id;
  }
}

TEST(PieceIds, NoneLeavesTheRange) {
  PieceIds ids;
  ids.heard(kMostPieceId - 1);
  const uint64_t usual = PieceIds().next();
  for (int i = 0; i < 100; ++i) {
    const uint64_t id = ids.next();
    EXPECT_LT(id, usual + kHour);
    EXPECT_GT(id, usual - kHour);
  }
}

TEST(PieceIds, AnIdSaysWhenItWasDrawn) {
  const auto now = [] {
    const auto since = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
  };
  const int64_t before = now();
  const uint64_t id = PieceIds().next();
  EXPECT_GE(drawn_at_ms(id), before);
  EXPECT_LE(drawn_at_ms(id), now());
}

}  // namespace
}  // namespace kvilt
