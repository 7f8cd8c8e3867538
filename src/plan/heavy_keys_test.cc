// Keys that are out stay out, whatever they had.
#include "plan/heavy_keys.h"

#include <gtest/gtest.h>

#include <random>

#include "plan/decode_rule.h"

namespace kvilt {
namespace {

// Some keys get a hundred times as much as others.
std::vector<float> random_weights(std::mt19937& rng, int32_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  for (int32_t j = 0; j < n; ++j) out[j] = static_cast<float>(rng() % 1000) * (j * 37 % 11 == 0 ? 100.0f : 1.0f);
  return out;
}

TEST(HeavyKeys, SumsAreOfAllRows) {
  HeavyKeys keys;
  keys.add(2, std::vector<float>{1, 2});
  keys.add(3, std::vector<float>{0, 3, 4});
  EXPECT_EQ(keys.scores(4), (std::vector<double>{1, 5, 4, 0}));
}

TEST(HeavyKeys, WhatStaysIsKnownByItsRank) {
  HeavyKeys keys;
  keys.add(7, std::vector<float>{9, 1, 2, 5, 6, 7, 8});
  EXPECT_EQ(keys.keep(Runs{{1, 3}, {4, 6}}), (Runs{{1, 3}, {4, 6}}));
  keys.add(8, std::vector<float>{10, 20, 30, 40, 50});
  EXPECT_EQ(keys.scores(9), (std::vector<double>{11, 22, 36, 47, 50, 0})) << "7 and 8 are in, 6 is not";
  EXPECT_EQ(keys.keep(Runs{{0, 1}, {2, 5}}), (Runs{{1, 2}, {4, 6}, {7, 8}}));
  EXPECT_EQ(keys.scores(9), (std::vector<double>{11, 36, 47, 50}));
  EXPECT_EQ(keys.keep({}), Runs());
  EXPECT_EQ(keys.scores(10), std::vector<double>{0});
}

TEST(HeavyKeys, WhatIsOutIsLostOnce) {
  HeavyKeys keys;
  keys.add(4, std::vector<float>{9, 1, 2, 4});
  EXPECT_EQ(keys.lost(), 0);
  keys.keep(Runs{{1, 4}});
  EXPECT_EQ(keys.lost(), 9);
  keys.add(4, std::vector<float>{1, 0, 0});
  keys.keep(Runs{{1, 2}});
  EXPECT_EQ(keys.lost(), 9 + 2 + 4);
}

// Row after row, a share does not shrink what is left of what is left: it is of all that was ever paid.
TEST(HeavyKeys, AShareIsOfAllThatWasPaid) {
  const DecodeRule rule{.by = DecodeRule::By::kAllRows, .budget = 1000, .recent = 1, .every = 1, .top_p = 0.8};
  HeavyKeys keys;
  keys.add(100, std::vector<float>(100, 1.0f));
  int32_t left = 0;
  for (int32_t pos = 100; pos < 120; ++pos) {
    const Runs kept =
        choose_keys(rule, 0, 1, std::vector<std::vector<double>>{keys.scores(pos)}, pos, std::vector{keys.lost()})[0];
    keys.keep(kept);
    left = static_cast<int32_t>(count(kept));
    if (pos == 100) {
      EXPECT_EQ(left, 80);
    }
    keys.add(pos + 1, std::vector<float>(static_cast<size_t>(left) + 1, 0.0f));
  }
  EXPECT_GE(left, 79) << "of the first ones, and the last";
  EXPECT_LE(left, 81);
}

// A head's rows, one after another: half of the budget the heaviest, half the last ones.
TEST(HeavyKeys, AnEvictedKeyNeverReturns) {
  const DecodeRule rule{.by = DecodeRule::By::kAllRows, .budget = 16, .recent = 8, .every = 1};
  int would_return = 0, heavy_left = 0;
  for (uint32_t seed = 0; seed < 5; ++seed) {
    std::mt19937 rng(seed);
    HeavyKeys keys;
    std::vector<double> sums(200, 0);  // of all keys, those that are out included
    Runs before;
    for (int32_t pos = 1; pos < 200; ++pos) {
      if (pos > 30) {
        const Runs kept =
            keys.keep(choose_keys(rule, 0, 1, std::vector<std::vector<double>>{keys.scores(pos)}, pos)[0]);
        EXPECT_EQ(count(kept), 16);
        EXPECT_TRUE(includes(kept, Runs{{pos - 8, pos}}));
        if (!before.empty()) {
          EXPECT_TRUE(includes(unite(before, Runs{{pos - 1, pos}}), kept));
          heavy_left += !includes(kept, intersect(before, Runs{{0, pos - 9}}));
          const std::vector<double> all(sums.begin(), sums.begin() + pos);
          would_return += !includes(unite(before, Runs{{pos - 1, pos}}),
                                    choose_keys(rule, 0, 1, std::vector<std::vector<double>>{all}, pos)[0]);
        }
        before = kept;
      }
      const std::vector<float> weights = random_weights(rng, pos);
      std::vector<float> of_seen;
      for (const auto& run : before.empty() ? Runs{{0, pos}} : before)
        of_seen.insert(of_seen.end(), weights.begin() + run.begin, weights.begin() + run.end);
      keys.add(pos, of_seen);
      for (int32_t j = 0; j < pos; ++j) sums[j] += weights[j];
    }
  }
  EXPECT_GT(would_return, 20) << "power: by their sums they would";
  EXPECT_GT(heavy_left, 20) << "power: a later one took its place";
}

}  // namespace
}  // namespace kvilt
