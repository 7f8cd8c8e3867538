#include "forward/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

namespace kvilt {
namespace {

std::vector<float> ladder(int n) {
  std::vector<float> out;
  for (int i = 0; i < n; ++i) out.push_back(static_cast<float>(std::log(1.0 + i)));  // weights 1, 2, ..., n
  return out;
}

std::set<int32_t> drawn(const SamplingParams& params, int times) {
  std::set<int32_t> out;
  for (int i = 0; i < times; ++i) {
    auto logits = ladder(10);
    out.insert(Sampler(params, static_cast<uint64_t>(i), {}).sample(logits));
  }
  return out;
}

TEST(Sampler, GreedyTakesTheLowestIdOfATie) {
  std::vector<float> logits{1, 3, 3, 2};
  SamplingParams params;
  params.temperature = 0;
  EXPECT_EQ(Sampler(params, 1, {}).sample(logits), 1);
}

TEST(Sampler, SaysWhichLogitsItCannotSample) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinite = std::numeric_limits<float>::infinity();
  for (const int32_t at : {0, 500, 999}) {
    auto logits = ladder(1000);
    logits[0] = -infinite;  // a token that the model forbids is sound
    EXPECT_TRUE(Sampler::can_sample(logits));
    for (const float bad : {nan, -nan, infinite}) {
      logits[at] = bad;
      EXPECT_FALSE(Sampler::can_sample(logits)) << at << " " << bad;
    }
  }
  EXPECT_FALSE(Sampler::can_sample(std::vector<float>(40, -infinite)));
}

TEST(Sampler, NoPenaltyMakesLogitsThatCannotBeDrawnFrom) {
  const float largest = std::numeric_limits<float>::max(), infinite = std::numeric_limits<float>::infinity();
  SamplingParams params;
  params.repetition_penalty = 1e-30f;
  params.presence_penalty = -largest;
  params.frequency_penalty = -largest;
  params.logit_bias = {{3, largest}, {4, -infinite}};
  params.top_p = 0.9f;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Sampler sampler(params, seed, std::vector<int32_t>{1, 2});
    for (int n = 0; n < 5; ++n) {
      auto logits = ladder(10);
      logits[3] = logits[1] = 1e30f;
      const int32_t id = sampler.sample(logits);
      EXPECT_TRUE(id >= 0 && id < 10 && id != 4) << id;
    }
  }
  params = {};
  for (int32_t id = 0; id < 10; ++id) params.logit_bias[id] = -infinite;
  auto logits = ladder(10);
  const int32_t id = Sampler(params, 1, {}).sample(logits);
  EXPECT_TRUE(id >= 0 && id < 10) << "all are forbidden: one is taken all the same";
}

TEST(Sampler, FiltersKeepWhatTheySay) {
  SamplingParams params;
  EXPECT_EQ(drawn(params, 4000).size(), 10u);
  params.top_k = 3;
  EXPECT_EQ(drawn(params, 2000), (std::set<int32_t>{7, 8, 9}));
  params = {};
  params.top_p = 0.5f;  // 10 + 9 + 8 = 27 of 55 is less than half, with 7 it is enough
  EXPECT_EQ(drawn(params, 2000), (std::set<int32_t>{6, 7, 8, 9}));
  params = {};
  params.min_p = 0.75f;
  EXPECT_EQ(drawn(params, 2000), (std::set<int32_t>{7, 8, 9}));
}

TEST(Sampler, FrequenciesFollowTheWeights) {
  SamplingParams params;
  Sampler sampler(params, 5, {});
  std::vector<int> times(10, 0);
  constexpr int kDraws = 55000;
  for (int i = 0; i < kDraws; ++i) {
    auto logits = ladder(10);
    ++times[sampler.sample(logits)];
  }
  for (int i = 0; i < 10; ++i) {
    const double expected = kDraws * (i + 1) / 55.0;
    EXPECT_NEAR(times[i], expected, 6 * std::sqrt(expected));
  }
}

TEST(Sampler, SameSeedSameText) {
  const auto text = [](uint64_t seed) {
    Sampler sampler(SamplingParams{}, seed, {});
    std::vector<int32_t> out;
    for (int i = 0; i < 50; ++i) {
      auto logits = ladder(50);
      out.push_back(sampler.sample(logits));
    }
    return out;
  };
  EXPECT_EQ(text(3), text(3));
  EXPECT_NE(text(3), text(4));
}

TEST(Sampler, PenaltiesAndBias) {
  SamplingParams params;
  params.temperature = 0;
  params.presence_penalty = 10;
  Sampler sampler(params, 0, {});
  for (int32_t expected : {9, 8, 7}) {
    auto logits = ladder(10);
    EXPECT_EQ(sampler.sample(logits), expected);
  }
  params = {};
  params.temperature = 0;
  params.repetition_penalty = 100;
  const int32_t prompt[] = {9, 8};
  auto logits = ladder(10);
  EXPECT_EQ(Sampler(params, 0, prompt).sample(logits), 7);
  params = {};
  params.temperature = 0;
  params.logit_bias = {{2, 100.f}, {77, 5.f}};
  logits = ladder(10);
  EXPECT_EQ(Sampler(params, 0, {}).sample(logits), 2);
}

TEST(Sampler, Logprobs) {
  const auto logits = ladder(10);
  const auto lp = Sampler::logprob(logits, 4, 2);
  EXPECT_NEAR(lp.logprob, std::log(5.0 / 55), 1e-6);
  ASSERT_EQ(lp.top.size(), 2u);
  EXPECT_EQ(lp.top[0].first, 9);
}

// Only the head of a large vocabulary is sorted: the same tokens as filters written out in full.
TEST(Sampler, LargeVocabulariesAreFilteredAsIfSorted) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> logits(5000);
  for (float& x : logits) x = normal(rng);
  std::vector<float> sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  double all = 0, mass = 0;
  for (const float x : logits) all += std::exp(double{x});
  size_t nucleus = 0;
  while (mass < 0.5 * all) mass += std::exp(double{sorted[nucleus++]});
  ASSERT_GT(nucleus, 500u);  // beyond the first heads that are tried
  for (const bool by_mass : {true, false}) {
    SamplingParams params;
    (by_mass ? params.top_p : params.min_p) = by_mass ? 0.5f : 0.1f;
    const float least = by_mass ? sorted[nucleus - 1] : sorted[0] + std::log(0.1f);
    Sampler sampler(params, 11, {});
    float lowest = sorted[0];
    for (int i = 0; i < 1000; ++i) {
      std::vector<float> copy = logits;
      lowest = std::min(lowest, logits[sampler.sample(copy)]);
    }
    EXPECT_GE(lowest, least - 1e-5f);
    EXPECT_LT(lowest, least + 0.1f);  // power: the tail of the head is drawn
  }
}

TEST(Sampler, ATinyTemperatureIsGreedy) {
  SamplingParams params;
  params.temperature = 1e-40f;
  Sampler sampler(params, 1, {});
  std::vector<float> logits{1, -3, 9, 8.999f, -20};
  EXPECT_EQ(sampler.sample(logits), 2);
}

// Presence counts a token once, frequency each time; neither counts the prompt.
TEST(Sampler, FrequencyGrowsWithEveryTime) {
  SamplingParams params;
  params.temperature = 0;
  params.frequency_penalty = 0.06f;  // 9 leads 8 by log(10 / 9) = 0.105: twice is too often
  const int32_t prompt[] = {9, 9, 9};
  Sampler sampler(params, 0, prompt);
  for (const int32_t expected : {9, 9, 8}) {
    auto logits = ladder(10);
    EXPECT_EQ(sampler.sample(logits), expected);
  }
  params.frequency_penalty = 0;
  params.presence_penalty = 0.06f;
  Sampler present(params, 0, prompt);
  for (const int32_t expected : {9, 9, 9}) {
    auto logits = ladder(10);
    EXPECT_EQ(present.sample(logits), expected);
  }
}

// Divides what is above zero and multiplies what is below, so that both become less likely.
TEST(Sampler, RepetitionLowersLogitsOfEitherSign) {
  SamplingParams params;
  params.temperature = 0;
  params.repetition_penalty = 2;
  const int32_t prompt[] = {0};
  std::vector<float> above{3, 2, -9}, below{-1, -1.5f, -9};
  EXPECT_EQ(Sampler(params, 0, prompt).sample(above), 1);
  EXPECT_EQ(Sampler(params, 0, prompt).sample(below), 1);
  EXPECT_EQ(above[0], 1.5f);
  EXPECT_EQ(below[0], -2.f);
}

TEST(Sampler, ABiasForbidsAndForces) {
  SamplingParams params;
  params.logit_bias = {{9, -100.f}, {8, -100.f}};
  const std::set<int32_t> left = drawn(params, 3000);
  EXPECT_EQ(left.size(), 8u);
  EXPECT_FALSE(left.count(9) || left.count(8));
  params.logit_bias = {{0, 100.f}};  // also past a top-k that would not have kept it
  params.top_k = 1;
  EXPECT_EQ(drawn(params, 100), std::set<int32_t>{0});
}

// Top-p is a share of what top-k kept, and min-p is measured at the temperature.
TEST(Sampler, FiltersActInOrder) {
  SamplingParams params;
  params.top_k = 3;
  params.top_p = 0.5f;  // 10 + 9 of 27
  EXPECT_EQ(drawn(params, 2000), (std::set<int32_t>{8, 9}));
  params = {};
  params.min_p = 0.75f;
  params.temperature = 2;  // weights become their square roots: 0.75 of the best is 0.5625 of it before
  EXPECT_EQ(drawn(params, 4000), (std::set<int32_t>{5, 6, 7, 8, 9}));
}

// The n-th draw depends on seed and n only: filters and penalties of other steps do not shift it.
TEST(Sampler, AForcedTokenTakesNoDraw) {
  Sampler plain(SamplingParams{}, 3, {}), forced(SamplingParams{}, 3, {});
  forced.accept(1);
  for (int i = 0; i < 20; ++i) {
    auto a = ladder(50), b = ladder(50);
    EXPECT_EQ(plain.sample(a), forced.sample(b));
  }
}

TEST(Sampler, TheBestLogprobsAreInOrderAndTheChosenOneNeedNotBeAmongThem) {
  std::vector<float> logits{0, 5, 5, -2, 7};
  const auto lp = Sampler::logprob(logits, 3, 3);
  EXPECT_EQ(lp.id, 3);
  ASSERT_EQ(lp.top.size(), 3u);
  EXPECT_EQ(lp.top[0].first, 4);
  EXPECT_EQ(lp.top[1].first, 1);  // the lower id of a tie
  EXPECT_EQ(lp.top[2].first, 2);
  EXPECT_NEAR(lp.top[0].second - lp.logprob, 9, 1e-5);
  EXPECT_EQ(Sampler::logprob(logits, 0, 20).top.size(), 5u);  // no more than there are
  EXPECT_TRUE(Sampler::logprob(logits, 0, 0).top.empty());
}

}  // namespace
}  // namespace kvilt
