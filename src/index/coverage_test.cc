#include "index/coverage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

namespace kvilt {
namespace {

Candidate range(int32_t begin, int32_t end, uint32_t segment = 0) {
  return {.begin = begin, .end = end, .segment = segment, .offset = begin, .rank = segment};
}
Candidate mark(int32_t begin, int32_t end, int32_t keep_begin, int32_t keep_end, uint32_t segment = 0) {
  Candidate s = range(begin, end, segment);
  s.keep_begin = keep_begin;
  s.keep_end = keep_end;
  return s;
}
using Ranges = std::vector<std::array<int32_t, 3>>;  // begin, end, segment
Ranges chosen(std::vector<Candidate> candidates, int32_t least) {
  Ranges ranges;
  for (const Candidate& s : choose_coverage(std::move(candidates), least)) {
    EXPECT_EQ(s.offset, s.begin) << "a cut must move the offset with it";
    ranges.push_back({s.begin, s.end, static_cast<int32_t>(s.segment)});
  }
  return ranges;
}

TEST(Coverage, NothingAndOne) {
  EXPECT_TRUE(chosen({}, 32).empty());
  EXPECT_EQ(chosen({range(3, 40, 1)}, 32), (Ranges{{3, 40, 1}}));
}

TEST(Coverage, LongOneInsteadOfManyShort) {
  EXPECT_EQ(chosen({range(0, 40, 1), range(40, 80, 2), range(80, 120, 3), range(0, 120, 4)}, 32),
            (Ranges{{0, 120, 4}}));
}

TEST(Coverage, TwoInsteadOfALongOneBetween) {
  // Longest first would take [10, 70) and leave 30 tokens uncovered.
  EXPECT_EQ(chosen({range(10, 70, 1), range(0, 45, 2), range(45, 90, 3)}, 32), (Ranges{{0, 45, 2}, {45, 90, 3}}));
}

TEST(Coverage, ASeamMustPay) {
  EXPECT_EQ(chosen({range(0, 100, 1), range(80, 116, 2)}, 32), (Ranges{{0, 100, 1}}));  // 16 more: not worth it
  EXPECT_EQ(chosen({range(0, 100, 1), range(80, 117, 2)}, 32), (Ranges{{0, 85, 1}, {85, 117, 2}}));
}

TEST(Coverage, OverlapGoesToTheLongerButLeavesTheLeast) {
  EXPECT_EQ(chosen({range(0, 100, 1), range(90, 150, 2)}, 32), (Ranges{{0, 100, 1}, {100, 150, 2}}));
  EXPECT_EQ(chosen({range(0, 60, 1), range(50, 150, 2)}, 32), (Ranges{{0, 50, 1}, {50, 150, 2}}));
  EXPECT_EQ(chosen({range(0, 40, 1), range(20, 150, 2)}, 32), (Ranges{{0, 32, 1}, {32, 150, 2}}));
  EXPECT_EQ(chosen({range(0, 33, 1), range(32, 64, 2)}, 32), (Ranges{{0, 32, 1}, {32, 64, 2}}));
}

TEST(Coverage, EqualRangesByRankWhateverTheOrder) {
  EXPECT_EQ(chosen({range(0, 50, 9), range(0, 50, 2), range(0, 50, 5)}, 32), (Ranges{{0, 50, 2}}));
  EXPECT_EQ(chosen({range(0, 50, 2), range(0, 50, 5), range(0, 50, 9)}, 32), (Ranges{{0, 50, 2}}));
}

TEST(Coverage, ShortMarksCountAndAreNotCut) {
  EXPECT_EQ(chosen({mark(10, 14, 10, 14, 1)}, 32), (Ranges{{10, 14, 1}}));
  // The neighbour is longer and reaches into the mark: the mark keeps all of itself.
  EXPECT_EQ(chosen({range(0, 100, 1), mark(90, 120, 95, 118, 2)}, 32), (Ranges{{0, 95, 1}, {95, 120, 2}}));
  EXPECT_EQ(chosen({mark(0, 30, 5, 25, 1), range(20, 100, 2)}, 32), (Ranges{{0, 25, 1}, {25, 100, 2}}));
  // Inside a longer candidate nothing is gained by cutting it out.
  EXPECT_EQ(chosen({range(0, 100, 1), mark(20, 30, 20, 30, 2)}, 32), (Ranges{{0, 100, 1}}));
}

// Value of a set of ranges: covered positions less the seams.
int64_t value_of(const std::vector<Candidate>& candidates, uint32_t set, int32_t least) {
  std::vector<bool> covered(64);
  int64_t seams = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if ((set >> i & 1) == 0) continue;
    for (int32_t p = candidates[i].begin; p < candidates[i].end; ++p) covered[p] = true;
    if (!candidates[i].marked()) seams += (least + 1) / 2;
  }
  return std::count(covered.begin(), covered.end(), true) - seams;
}

TEST(Coverage, IsTheBestOfAllSubsets) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 3000; ++trial) {
    const int32_t least = 1 + static_cast<int32_t>(random() % 9);
    std::vector<Candidate> all;
    const int n = 1 + static_cast<int>(random() % 7);
    for (int i = 0; i < n; ++i) {
      const int32_t begin = static_cast<int32_t>(random() % 40);
      all.push_back(range(begin, begin + least + static_cast<int32_t>(random() % 15), i));
    }
    int64_t best = 0;
    for (uint32_t set = 0; set < 1u << n; ++set) best = std::max(best, value_of(all, set, least));
    const std::vector<Candidate> got = choose_coverage(all, least);
    int64_t value = 0;
    int32_t end = 0;
    for (const Candidate& s : got) {
      ASSERT_GE(s.begin, end) << "sorted and disjoint";
      ASSERT_GE(s.begin, all[s.segment].begin);
      ASSERT_LE(s.end, all[s.segment].end);
      ASSERT_GE(s.end - s.begin, (least + 1) / 2);
      end = s.end;
      value += s.end - s.begin - (least + 1) / 2;
    }
    ASSERT_EQ(value, best) << "trial " << trial;
  }
}

}  // namespace
}  // namespace kvilt
