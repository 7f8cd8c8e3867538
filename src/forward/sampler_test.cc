#include "forward/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
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

// What drawn_logprob tells is how often tokens come.
TEST(Sampler, TheProbabilitiesOfADrawAreItsFrequencies) {
  constexpr int kDraws = 20000;
  const int32_t mask[] = {0x3bf};  // not 6
  SamplingParams top_k, top_p, min_p, warm, biased, all;
  top_k.top_k = 3;
  top_p.top_p = 0.5f;
  min_p.min_p = 0.75f;
  warm.temperature = 2;
  biased.logit_bias = {{9, -100.f}, {2, 1.f}};
  all = biased;
  all.top_k = 8, all.top_p = 0.9f, all.min_p = 0.2f, all.temperature = 0.7f;
  bool differs = false;
  int told_of_six = 0;
  for (const SamplingParams& params : {SamplingParams(), top_k, top_p, min_p, warm, biased, all}) {
    for (const TokenMask may : {TokenMask(), TokenMask(mask)}) {
      Sampler sampler(params, 7, {});
      SamplerScratch scratch(10);
      std::map<int32_t, int> times;
      std::map<int32_t, double> told;
      for (int i = 0; i < kDraws; ++i) {
        auto logits = ladder(10);
        const int32_t id = sampler.sample(logits, scratch, may);
        ++times[id];
        const TokenLogprob of = sampler.drawn_logprob(logits, scratch, may, id, 10);
        if (!told.contains(id)) {
          for (const auto& [other, logprob] : of.top) told[other] = std::exp(logprob);
        }
        ASSERT_NEAR(std::exp(of.logprob), told[id], 1e-6);
        ASSERT_TRUE(std::ranges::is_sorted(of.top, std::greater{}, &std::pair<int32_t, float>::second));
      }
      double sum = 0;
      for (const auto& [id, share] : told) {
        EXPECT_NEAR(times[id], kDraws * share, 6 * std::sqrt(kDraws * share) + 1e-3) << id;
        sum += share;
      }
      EXPECT_NEAR(sum, 1, 1e-5);
      EXPECT_FALSE(told.contains(6) && !may.empty()) << "what a mask refuses is not told of";
      told_of_six += told.contains(6);
      differs = differs || std::abs(told[9] - 10 / 55.0) > 0.05;
    }
  }
  EXPECT_TRUE(differs) << "power: these are not the model's";
  EXPECT_GE(told_of_six, 4) << "power: without a mask and these filters it is";
}

TEST(Sampler, AGreedyDrawHasOneProbability) {
  SamplingParams params;
  params.temperature = 0;
  params.logit_bias = {{9, -1.f}};
  Sampler sampler(params, 1, {});
  SamplerScratch scratch(10);
  auto logits = ladder(10);
  ASSERT_EQ(sampler.sample(logits, scratch), 8);
  const TokenLogprob of = sampler.drawn_logprob(logits, scratch, {}, 8, 3);
  EXPECT_EQ(of.logprob, 0);
  EXPECT_EQ(of.top, (std::vector<std::pair<int32_t, float>>{{8, 0}}));
  const TokenLogprob other = sampler.drawn_logprob(logits, scratch, {}, 3, 1);
  EXPECT_EQ(other.logprob, -INFINITY) << "power";
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

TEST(Sampler, OnlyAllowedIdsAreDrawn) {
  SamplingParams params;
  params.allowed_ids = {3, 7, 3};
  Sampler some(params, 1, {}), all({}, 1, {});
  std::set<int32_t> drawn, others;
  for (int i = 0; i < 200; ++i) {
    auto a = ladder(10), b = ladder(10);
    drawn.insert(some.sample(a));
    others.insert(all.sample(b));
  }
  EXPECT_EQ(drawn, (std::set<int32_t>{3, 7}));
  EXPECT_GT(others.size(), 5u) << "power";
  params.temperature = 0;
  params.logit_bias = {{9, 100.f}};
  auto logits = ladder(10);
  EXPECT_EQ(Sampler(params, 0, {}).sample(logits), 7) << "no bias makes another one possible";
  params.repetition_penalty = 10;
  params.allowed_ids = {2, 4};
  std::vector<float> impossible(10, 0.f);
  impossible[2] = impossible[4] = -INFINITY;
  const int32_t prompt[] = {2, 4};
  EXPECT_EQ(Sampler(params, 0, prompt).sample(impossible), 2) << "of what the model rules out the first";
}

TEST(Sampler, BarredIdsComeBehindTheFirstDraws) {
  SamplingParams params;
  params.temperature = 0;
  params.logit_bias = {{9, 100.f}};
  Sampler sampler(params, 1, {});
  sampler.bar({9, 8, 700}, 3);
  std::vector<int32_t> drawn;
  for (int i = 0; i < 5; ++i) {
    auto logits = ladder(10);
    drawn.push_back(sampler.sample(logits));
  }
  const int32_t usual = drawn[0];
  EXPECT_NE(usual, 9);
  EXPECT_NE(usual, 8);
  EXPECT_EQ(drawn, (std::vector<int32_t>{usual, usual, usual, 9, 9}));
  params.allowed_ids = {9};
  Sampler only(params, 1, {});
  only.bar({9}, 3);
  auto logits = ladder(10);
  EXPECT_EQ(only.sample(logits), 9) << "where nothing else may come";
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

// The draw written out: everything is sorted, weighed in double, filtered and added up.
int32_t drawn_in_full(const std::vector<float>& logits, const SamplingParams& params, double uniform) {
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const bool filtered_k = params.top_k > 0 && params.top_k < static_cast<int>(logits.size());
  const bool filtered = filtered_k || params.top_p < 1 || params.min_p > 0;
  if (filtered) std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (filtered_k) order.resize(static_cast<size_t>(params.top_k));
  const float most = *std::ranges::max_element(logits);
  const auto weight = [&](int32_t id) { return std::exp(double{(logits[id] - most) / params.temperature}); };
  double all = 0, mass = 0;
  for (const int32_t id : order) all += weight(id);
  size_t end = 0;
  while (end < order.size() && (end == 0 || weight(order[end]) >= params.min_p)) {
    mass += weight(order[end++]);
    if (params.top_p < 1 && mass >= params.top_p * all) break;
  }
  double left = uniform * mass;
  size_t i = 0;
  for (; i + 1 < end && left >= weight(order[i]); ++i) left -= weight(order[i]);
  return order[i];
}

// The n-th uniform number of a seed (SplitMix64), as the sampler draws it.
double uniform_of(uint64_t seed, uint64_t n) {
  uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
}

// Blocks are skipped and only the head is sorted; with one working memory for vocabularies of any size.
TEST(Sampler, DrawsAsIfWrittenOut) {
  std::mt19937 rng(8);
  SamplerScratch scratch(20000);
  std::set<int32_t> tokens;
  int same = 0, draws = 0;
  for (const int V : {20000, 1, 127, 128, 129, 3001}) {
    for (const float spread : {0.3f, 2.f, 9.f}) {
      std::normal_distribution<float> normal(0, spread);
      std::vector<float> logits(static_cast<size_t>(V));
      for (float& x : logits) x = std::round(8 * normal(rng)) / 8;  // with ties
      for (const float temperature : {0.6f, 1.f, 1.7f}) {
        for (const int top_k : {0, 1, 40, 1500}) {
          for (const float top_p : {1.f, 0.95f, 0.4f}) {
            for (const float min_p : {0.f, 0.02f}) {
              SamplingParams params;
              params.temperature = temperature, params.top_k = top_k, params.top_p = top_p, params.min_p = min_p;
              Sampler sampler(params, 77, {});
              for (uint64_t n = 0; n < 3; ++n, ++draws) {
                std::vector<float> copy = logits;
                const int32_t id = sampler.sample(copy, scratch);
                ASSERT_TRUE(id >= 0 && id < V);
                same += id == drawn_in_full(logits, params, uniform_of(77, n));
                tokens.insert(id);
              }
            }
          }
        }
      }
    }
  }
  // Sums are fp32 here: a draw at the very border of two tokens may fall to the neighbour.
  EXPECT_GE(same, draws - 2) << draws;
  EXPECT_GT(tokens.size(), 300u) << "power";
}

// Tokens that may be drawn: a few, some in every block, most, whole words of them, and all of these beside each other.
std::vector<int32_t> mask_of(int kind, size_t V, std::mt19937& rng) {
  std::vector<int32_t> out((V + 31) / 32);
  for (size_t id = 0; id < V; ++id) {
    const int here = kind < 4 ? kind : static_cast<int>(id / 256 % 4);
    const uint32_t dice = rng() % 1000;
    const bool may = here == 0   ? dice < 2 || id == V / 2
                     : here == 1 ? dice < 100 + id / 128 % 4 * 100
                     : here == 2 ? dice < 970
                                 : id / 64 % 3 == 0;
    if (may) out[id / 32] |= static_cast<int32_t>(uint32_t{1} << (id % 32));
  }
  return out;
}

// A mask, and minus infinity in the place of what it refuses, are the same bit for bit.
TEST(Sampler, AMaskIsMinusInfinity) {
  std::mt19937 rng(9);
  SamplerScratch scratch(20000);
  std::set<int32_t> tokens;
  int draws = 0, other = 0;
  for (const int V : {20000, 1, 31, 127, 128, 129, 3001}) {
    for (int kind = 0; kind < 5; ++kind) {
      std::normal_distribution<float> normal(0, kind % 2 == 0 ? 1.f : 6.f);
      std::vector<float> logits(static_cast<size_t>(V));
      for (float& x : logits) x = std::round(8 * normal(rng)) / 8;  // with ties
      const std::vector<int32_t> may = mask_of(kind, logits.size(), rng);
      std::vector<float> ruled_out = logits;
      for (size_t id = 0; id < logits.size(); ++id) {
        if ((static_cast<uint32_t>(may[id / 32]) >> (id % 32) & 1u) == 0) ruled_out[id] = -INFINITY;
      }
      std::vector<float> once = logits;
      rule_out(may, once);
      ASSERT_EQ(once, ruled_out);
      for (const float temperature : {0.f, 0.7f, 1.7f}) {
        for (const int top_k : {0, 3, 700}) {
          for (const float top_p : {1.f, 0.9f}) {
            for (const float min_p : {0.f, 0.02f}) {
              SamplingParams params;
              params.temperature = temperature, params.top_k = top_k, params.top_p = top_p, params.min_p = min_p;
              params.repetition_penalty = 1.3f, params.presence_penalty = 0.5f;
              params.logit_bias = {{V / 3, 4.f}, {V / 2, 2.f}, {V - 1, -HUGE_VALF}};
              Sampler masked(params, 77, {}), plain(params, 77, {}), free(params, 77, {});
              for (int n = 0; n < 4; ++n, ++draws) {
                std::vector<float> a = logits, b = ruled_out, c = logits;
                const int32_t id = masked.sample(a, scratch, may);
                ASSERT_EQ(id, plain.sample(b, scratch)) << V << " " << kind << " " << temperature << " " << top_k;
                other += free.sample(c, scratch) != id;
                tokens.insert(id);
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(other, draws / 3) << "power: the mask changes what is drawn";
  EXPECT_GT(tokens.size(), 200u) << "power";
}

// A model that yields no numbers gets some token of its vocabulary; what is a number is preferred.
TEST(Sampler, WhatIsNoNumberIsNotDrawn) {
  for (const float top_p : {1.f, 0.9f}) {
    SamplingParams params;
    params.top_p = top_p;
    Sampler sampler(params, 2, {});
    std::vector<float> none(300, std::nanf(""));
    const int32_t id = sampler.sample(none);
    EXPECT_TRUE(id >= 0 && id < 300);
    for (int i = 0; i < 50; ++i) {
      std::vector<float> some(300, std::nanf(""));
      some[7] = -3, some[200] = -3.5f;
      const int32_t chosen = sampler.sample(some);
      EXPECT_TRUE(chosen == 7 || chosen == 200) << chosen;
    }
    std::vector<float> never(300, -HUGE_VALF);
    never[299] = 1;
    EXPECT_EQ(sampler.sample(never), 299);
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

// llama.cpp's repeat_last_n: what lies farther back does not count.
TEST(Sampler, PenaltiesLookBackAsFarAsTheirWindow) {
  const auto text_of = [](int window, float repetition, float frequency) {
    SamplingParams params;
    params.temperature = 0;
    params.repetition_penalty = repetition;
    params.frequency_penalty = frequency;
    params.penalty_window = window;
    const int32_t prompt[] = {9, 8};
    Sampler sampler(params, 0, prompt);
    std::vector<int32_t> out;
    for (int i = 0; i < 5; ++i) {
      auto logits = ladder(10);
      out.push_back(sampler.sample(logits));
    }
    return out;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(text_of(-1, 100, 0), (Ids{7, 6, 5, 4, 3})) << "power: nothing is forgotten";
  EXPECT_EQ(text_of(0, 100, 0), (Ids{9, 9, 9, 9, 9}));
  EXPECT_EQ(text_of(0, 1, 2), (Ids{9, 9, 9, 9, 9}));
  EXPECT_EQ(text_of(1, 100, 0), (Ids{9, 8, 9, 8, 9})) << "of the prompt the 8 alone";
  EXPECT_EQ(text_of(2, 100, 0), (Ids{7, 9, 8, 7, 9})) << "the prompt's leave first";
  EXPECT_EQ(text_of(2, 1, 2), (Ids{9, 8, 7, 9, 8})) << "which this does not count";
  EXPECT_EQ(text_of(-1, 1, 2), (Ids{9, 8, 7, 6, 5})) << "power";
  EXPECT_EQ(text_of(100, 100, 0), text_of(-1, 100, 0));
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
  EXPECT_EQ(lp.rank, 5);
  EXPECT_EQ(Sampler::logprob(logits, 4, 0).rank, 1);
  EXPECT_EQ(Sampler::logprob(logits, 1, 0).rank, 2);
  EXPECT_EQ(Sampler::logprob(logits, 2, 0).rank, 3) << "as the order of a tie has it";
}

TEST(Sampler, TheBestLogprobsOfManyAreThoseOfASortedList) {
  std::mt19937 rng(8);
  std::vector<float> logits(3000);
  for (float& x : logits) x = static_cast<float>(rng() % 40) / 4;  // many ties
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  for (const size_t at : {size_t{0}, size_t{7}, size_t{19}, size_t{2999}}) {
    const auto lp = Sampler::logprob(logits, order[at], 20);
    EXPECT_EQ(lp.rank, static_cast<int32_t>(at) + 1);
    for (size_t i = 0; i < lp.top.size(); ++i) EXPECT_EQ(lp.top[i].first, order[i]);
  }
}

}  // namespace
}  // namespace kvilt
