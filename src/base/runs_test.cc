#include "base/runs.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace kvilt {
namespace {

std::set<int32_t> as_set(const Runs& runs) {
  std::set<int32_t> out;
  for (const int32_t pos : positions(runs)) out.insert(pos);
  return out;
}

Runs random_runs(std::mt19937& rng) {
  Runs runs;
  for (int n = static_cast<int>(rng() % 8); n > 0; --n) {
    const auto begin = static_cast<int32_t>(rng() % 40);
    runs.push_back({begin, begin + static_cast<int32_t>(rng() % 6)});
  }
  return normalize(runs);
}

TEST(Runs, AgreeWithSetsOfPositions) {
  std::mt19937 rng(7);
  for (int round = 0; round < 3000; ++round) {
    const Runs a = random_runs(rng), b = random_runs(rng);
    const auto sa = as_set(a), sb = as_set(b);
    std::set<int32_t> all = sa, both, less;
    all.insert(sb.begin(), sb.end());
    for (const int32_t p : sa) (sb.count(p) ? both : less).insert(p);
    for (const Runs& out : {unite(a, b), intersect(a, b), subtract(a, b)}) EXPECT_TRUE(is_normal(out));
    EXPECT_EQ(as_set(unite(a, b)), all);
    EXPECT_EQ(as_set(intersect(a, b)), both);
    EXPECT_EQ(as_set(subtract(a, b)), less);
    EXPECT_EQ(includes(a, b), both.size() == sb.size());
    EXPECT_EQ(runs_of(positions(a)), a);
    EXPECT_EQ(count(a), static_cast<int64_t>(sa.size()));
    for (int32_t p = -1; p < 50; ++p) EXPECT_EQ(contains(a, p), sa.count(p) == 1);
    std::set<int32_t> grown;
    for (const int32_t p : sa) {
      for (int32_t q = p - 2; q <= p + 2; ++q) {
        if (q >= 3 && q < 30) grown.insert(q);
      }
    }
    EXPECT_EQ(as_set(dilate(a, 2, {3, 30})), grown);
  }
}

TEST(Runs, WholeWithinIsCountedFromTheBeginning) {
  EXPECT_EQ(whole_within(Runs{{0, 5}, {4, 9}, {5, 10}, {6, 6}, {9, 12}}, {4, 10}), (Runs{{0, 5}, {1, 6}, {2, 2}}));
  EXPECT_TRUE(whole_within(Runs{{0, 5}}, {1, 5}).empty());
}

TEST(Runs, NormalRejectsTouchingOverlappingAndEmpty) {
  EXPECT_TRUE(is_normal(Runs{{0, 2}, {3, 4}}));
  EXPECT_FALSE(is_normal(Runs{{0, 2}, {2, 4}}));
  EXPECT_FALSE(is_normal(Runs{{0, 3}, {2, 4}}));
  EXPECT_FALSE(is_normal(Runs{{1, 1}}));
}

}  // namespace
}  // namespace kvilt
