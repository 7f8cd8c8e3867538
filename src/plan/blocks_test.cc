// Blocks of keys: what scores make them weigh, what is chosen of them, and the distance of two estimates, by hand.
#include "plan/blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace kvilt {
namespace {

void add(std::vector<float> scores, int32_t per_block, BlockWeights& weights) {
  add_softmax(scores, per_block, weights);
}

std::vector<Runs> choose(const std::vector<BlockWeights>& tiles, const BlockOptions& options) {
  return choose_blocks(tiles, options);
}

TEST(Blocks, WeightsAreTheSoftmaxOfGroupsSummedByBlock) {
  BlockWeights weights(3, 0);
  add({0, std::log(3.0f), std::log(2.0f), std::log(4.0f), 0}, 2, weights);
  EXPECT_NEAR(weights[0], 4.0 / 11, 1e-7);
  EXPECT_NEAR(weights[1], 6.0 / 11, 1e-7);
  EXPECT_NEAR(weights[2], 1.0 / 11, 1e-7);
  add({50, -50}, 2, weights);  // another row, and it sees the first block only
  EXPECT_NEAR(weights[0], 15.0 / 11, 1e-7);
  EXPECT_NEAR(weights[1], 6.0 / 11, 1e-7) << "power: one row of scores moves its own blocks only";
}

TEST(Blocks, WhatIsNotFiniteWeighsNothing) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  BlockWeights weights(4, 0);
  add({1, kNan, 1, kInf}, 1, weights);
  EXPECT_EQ(weights, (BlockWeights{0.5, 0, 0.5, 0}));
  add({kNan, -kInf}, 1, weights);
  EXPECT_EQ(weights, (BlockWeights{0.5, 0, 0.5, 0}));
  EXPECT_EQ(choose({{0, 0, 0, 0}}, {.mass = 0.5})[0], (Runs{{0, 1}, {3, 4}})) << "all are alike then";
}

TEST(Blocks, TheHeaviestAreCountedAndTheOwnOneIsAmongThem) {
  const BlockWeights weights{0.1, 0.5, 0.05, 0.3, 0.05};
  EXPECT_EQ(choose({weights}, {.most = 1})[0], (Runs{{4, 5}}));
  EXPECT_EQ(choose({weights}, {.most = 3})[0], (Runs{{1, 2}, {3, 5}}));
  EXPECT_EQ(choose({weights}, {.most = 3, .first = true})[0], (Runs{{0, 2}, {4, 5}}));
  EXPECT_EQ(choose({weights}, {.most = 5})[0], (Runs{{0, 5}}));
  EXPECT_TRUE(takes_all({.most = 5}, 5));
  EXPECT_FALSE(takes_all({.most = 5}, 6));
  EXPECT_FALSE(takes_all({.mass = 0.999}, 2));
}

TEST(Blocks, TheHeaviestHoldTheShare) {
  const BlockWeights weights{0.2, 1, 0.1, 0.6, 0.1};  // of 2: .1, .5, .05, .3, .05
  EXPECT_EQ(choose({weights}, {.mass = 0})[0], (Runs{{4, 5}}));
  EXPECT_EQ(choose({weights}, {.mass = 0.5})[0], (Runs{{1, 2}, {4, 5}})) << "the own block's .05 counts";
  EXPECT_EQ(choose({weights}, {.mass = 0.6})[0], (Runs{{1, 2}, {3, 5}}));
  EXPECT_EQ(choose({weights}, {.mass = 0.6, .first = true})[0], (Runs{{0, 2}, {4, 5}})) << ".05 + .1 + .5 is enough";
  EXPECT_EQ(choose({weights}, {.mass = 0.9})[0], (Runs{{0, 2}, {3, 5}}));
  EXPECT_EQ(choose({weights}, {.mass = 1})[0], (Runs{{0, 5}}));
}

// One tile whose attention is on one block, one whose attention is everywhere: together the share is held with fewer.
TEST(Blocks, TilesChooseTogetherOrAlone) {
  const std::vector<BlockWeights> tiles{{0.96, 0.02, 0.01, 0.01}, {3, 3, 3, 3, 3}};
  const auto alone = choose(tiles, {.mass = 0.7}), together = choose(tiles, {.mass = 0.7, .together = true});
  EXPECT_EQ(alone, (std::vector<Runs>{{{0, 1}, {3, 4}}, {{0, 3}, {4, 5}}}));
  EXPECT_EQ(together, (std::vector<Runs>{{{0, 1}, {3, 4}}, {{0, 2}, {4, 5}}})) << ".97 and three times .2 hold 1.4";
  EXPECT_EQ(choose(tiles, {.mass = 0.7, .least = 3, .together = true}),
            (std::vector<Runs>{{{0, 2}, {3, 4}}, {{0, 2}, {4, 5}}}))
      << "each has three; the second had them";
  EXPECT_EQ(choose(tiles, {.mass = 0, .least = 9, .together = true}), (std::vector<Runs>{{{0, 4}}, {{0, 5}}}));
  EXPECT_TRUE(takes_all({.mass = 0.1, .least = 5}, 5) && !takes_all({.mass = 0.1, .least = 4}, 5));
  EXPECT_EQ(choose({tiles[1]}, {.mass = 0.7, .together = true})[0], alone[1]) << "a tile that is together with none";
}

TEST(Blocks, TheShareIsHeldOnRandomWeights) {
  std::mt19937_64 rng(7);
  int64_t fewer = 0;
  for (int n = 1; n < 200; ++n) {
    BlockWeights weights;
    double sum = 0;
    for (int b = 0; b < n; ++b) sum += weights.emplace_back(std::exp(static_cast<double>(rng() % 8)));
    for (const double mass : {0.3, 0.9, 1.0}) {
      const Runs chosen = choose({weights}, {.mass = mass, .first = n % 2 == 0})[0];
      double held = 0;
      for (const int32_t b : positions(chosen)) held += weights[b];
      EXPECT_GE(held / sum, mass - 1e-9);
      EXPECT_TRUE(contains(chosen, n - 1));
      EXPECT_TRUE(n % 2 != 0 || contains(chosen, 0));
      fewer += count(chosen) < n ? 1 : 0;
    }
  }
  EXPECT_GT(fewer, 300) << "power";
}

TEST(Blocks, TheDistanceOfTwoEstimates) {
  const std::vector<double> a{3, 1}, same{0.75, 0.25}, b{1, 1}, left{2, 0}, right{0, 5}, none{0, 0};
  EXPECT_NEAR(shannon_distance(a, same), 0, 1e-8);
  EXPECT_NEAR(shannon_distance(left, right), std::sqrt(std::log(2.0)), 1e-12);
  EXPECT_NEAR(shannon_distance(left, none), std::sqrt(std::log(2.0)), 1e-12);
  // .5 (.75 log(.75 / .625) + .25 log(.25 / .375)) + .5 (.5 log(.5 / .625) + .5 log(.5 / .375))
  const double by_hand =
      0.5 * (0.75 * std::log(1.2) + 0.25 * std::log(2.0 / 3)) + 0.5 * (0.5 * std::log(0.8) + 0.5 * std::log(4.0 / 3));
  EXPECT_NEAR(shannon_distance(a, b), std::sqrt(by_hand), 1e-12);
  EXPECT_NEAR(shannon_distance(b, a), shannon_distance(a, b), 1e-12);
}

}  // namespace
}  // namespace kvilt
