// The carry's weights against their definitions (docs/math/carry.md).
#include "plan/carry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace kvilt {
namespace {

Carry carry_of(Carry::Kernel kernel, float width = 8) {
  Carry carry;
  carry.kernel = kernel;
  carry.width = width;
  carry.noise = 1;
  return carry;
}

// Distance of position a from source b, for kContent.
using Distance = std::function<float(int32_t, int32_t)>;

CarryWeights carry_weights(const Carry& carry, const CarryGroup& group, const Runs& written, const Distance& d = {}) {
  CarryWeights out = carry_positions(group, written);
  std::vector<float> distance;
  if (d) {
    for (const auto* positions : {&out.sources, &out.targets}) {
      for (const int32_t pos : *positions) {
        for (const int32_t source : out.sources) distance.push_back(d(pos, source));
      }
    }
  }
  if (!out.sources.empty()) weigh(carry, group, distance, out);
  return out;
}

CarryWeights carry_weights(const Carry& carry, Run part, const Runs& written) {
  return carry_weights(carry, CarryGroup{{part}}, written);
}

// A position's content as one number: every third is alike.
float content(int32_t a, int32_t b) { return static_cast<float>((a % 3 - b % 3) * (a % 3 - b % 3)); }

TEST(Carry, MeanIsShrunk) {
  const CarryWeights w = carry_weights(carry_of(Carry::Kernel::kMean), {10, 15}, {{11, 12}, {13, 14}, {40, 41}});
  EXPECT_EQ(w.sources, (std::vector<int32_t>{11, 13}));
  EXPECT_EQ(w.targets, (std::vector<int32_t>{10, 12, 14}));
  for (const float x : w.w) EXPECT_FLOAT_EQ(x, 1.0f / 3);
}

// Keys may hold anything: NaN, and numbers whose distances contradict each other.
TEST(Carry, WithoutASolutionItIsTheMean) {
  const CarryGroup group{{{0, 5}, {5, 9}}};
  const Runs written{{1, 2}, {3, 4}, {6, 7}};
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinite = std::numeric_limits<float>::infinity();
  const std::vector<Distance> unsound = {
      [&](int32_t, int32_t) { return nan; },
      [&](int32_t a, int32_t) { return a == 3 ? nan : 1.0f; },
      [&](int32_t a, int32_t b) { return a == b ? infinite : 0.0f; },
      [&](int32_t a, int32_t b) { return a == b ? 0.0f : -infinite; },
  };
  for (size_t i = 0; i < unsound.size(); ++i) {
    const CarryWeights w = carry_weights(carry_of(Carry::Kernel::kContent), group, written, unsound[i]);
    ASSERT_EQ(w.w.size(), 6u * 3) << i;
    for (const float x : w.w) EXPECT_FLOAT_EQ(x, 1.0f / (3 + 1)) << i;
    for (size_t s = 0; s < 9; ++s) EXPECT_FLOAT_EQ(w.left_out[s], s % 4 == 0 ? 0 : 1.0f / (2 + 1)) << i;
  }
  const CarryWeights sound = carry_weights(carry_of(Carry::Kernel::kContent), group, written, content);
  EXPECT_NE(sound.w[0], 0.25f) << "power check";
}

TEST(Carry, AWideGaussianIsTwiceTheConstantKernel) {
  // k = 2 everywhere: w = 2 / (1 + 2 n) each.
  const CarryWeights w = carry_weights(carry_of(Carry::Kernel::kGaussian, 1e5f), {0, 6}, {{1, 2}, {3, 5}});
  for (const float x : w.w) EXPECT_NEAR(x, 2.0 / 7, 1e-6);
}

TEST(Carry, OneSourceByHand) {
  // k(s, s) + 1 = 3; k(u, s) = 1 + exp(-d^2 / 2).
  const CarryWeights w = carry_weights(carry_of(Carry::Kernel::kGaussian, 1), {0, 4}, {{1, 2}});
  EXPECT_EQ(w.targets, (std::vector<int32_t>{0, 2, 3}));
  EXPECT_NEAR(w.w[0], (1 + std::exp(-0.5)) / 3, 1e-6);
  EXPECT_NEAR(w.w[1], (1 + std::exp(-0.5)) / 3, 1e-6);
  EXPECT_NEAR(w.w[2], (1 + std::exp(-2.0)) / 3, 1e-6);
}

TEST(Carry, GaussianSolvesItsSystem) {
  const Runs written{{3, 5}, {9, 10}, {20, 23}};
  const CarryWeights w = carry_weights(carry_of(Carry::Kernel::kGaussian, 4), {0, 30}, written);
  const auto k = [](int a, int b) { return 1 + std::exp(-(a - b) * (a - b) / 32.0); };
  const size_t n = w.sources.size();
  ASSERT_EQ(n, 6u);
  for (size_t u = 0; u < w.targets.size(); ++u) {
    for (size_t j = 0; j < n; ++j) {  // w (k(S, S) + I) = k(u, S)
      double sum = w.w[u * n + j];
      for (size_t i = 0; i < n; ++i) sum += w.w[u * n + i] * k(w.sources[i], w.sources[j]);
      EXPECT_NEAR(sum, k(w.targets[u], w.sources[j]), 1e-5);
    }
  }
}

TEST(Carry, NearestTakesFour) {
  const CarryWeights w =
      carry_weights(carry_of(Carry::Kernel::kNearest), {0, 20}, {{1, 2}, {3, 4}, {5, 6}, {7, 8}, {19, 20}});
  const float each = 5.0f / 6 / 4;
  EXPECT_EQ((std::vector<float>(w.w.begin(), w.w.begin() + 5)), (std::vector<float>{each, each, each, each, 0}));
}

TEST(Carry, NothingWithoutSourcesOrTargets) {
  EXPECT_TRUE(carry_weights(carry_of(Carry::Kernel::kMean), {5, 9}, {{0, 5}, {9, 12}}).sources.empty());
  EXPECT_TRUE(carry_weights(carry_of(Carry::Kernel::kMean), {5, 9}, {{0, 12}}).sources.empty());
}

TEST(Carry, ByContentByHand) {
  // Source 1 in part [0, 2), target 0 next to it, targets 5 and 6 in another part.
  // lambda 1: k(s, s) + 1 = 1 + 1 + 2 + 1.
  Carry carry = carry_of(Carry::Kernel::kContent, 1);
  carry.content_width = 1;
  const CarryGroup group{{{0, 2}, {5, 7}}};
  const auto d = [](int32_t a, int32_t b) { return a == b ? 0.0f : a == 5 ? 2.0f : 1.0f; };
  const CarryWeights w = carry_weights(carry, group, {{1, 2}, {3, 4}}, d);
  EXPECT_EQ(w.sources, (std::vector<int32_t>{1}));  // the gap between the parts belongs to neither
  EXPECT_EQ(w.targets, (std::vector<int32_t>{0, 5, 6}));
  EXPECT_NEAR(w.w[0], (1 + std::exp(-0.5) + 2 * std::exp(-0.5)) / 5, 1e-6);
  EXPECT_NEAR(w.w[1], std::exp(-1.0) / 5, 1e-6);
  EXPECT_NEAR(w.w[2], std::exp(-0.5) / 5, 1e-6);
}

TEST(Carry, WhatIsNothingAlikeIsLeftToItsPart) {
  Carry by_content = carry_of(Carry::Kernel::kContent, 4), gaussian = carry_of(Carry::Kernel::kGaussian, 4);
  gaussian.noise = by_content.noise + 2;  // alike only to itself: only k(s, s) has the 2 more
  const auto nothing_alike = [](int32_t a, int32_t b) { return a == b ? 0.0f : 1e6f; };
  const Runs written{{3, 5}, {9, 10}, {33, 34}};
  const CarryWeights both = carry_weights(by_content, CarryGroup{{{0, 20}, {30, 40}}}, written, nothing_alike);
  const CarryWeights one = carry_weights(gaussian, {0, 20}, written);
  const size_t n = both.sources.size();
  ASSERT_EQ(n, 4u);
  for (size_t u = 0; u < one.targets.size(); ++u) {
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(both.w[u * n + i], one.w[u * 3 + i], 1e-6);
    EXPECT_NEAR(both.w[u * n + 3], 0, 1e-9);  // the other part's source
  }
}

// left_out against the definition: drop a source, weigh the rest, read what it would get.
TEST(Carry, EachSourceIsPredictedFromTheOthers) {
  const Runs written{{3, 5}, {9, 10}, {20, 23}};
  using Kernel = Carry::Kernel;
  for (const auto kernel : {Kernel::kMean, Kernel::kGaussian, Kernel::kNearest, Kernel::kContent}) {
    Carry carry = carry_of(kernel, 4);
    carry.noise = 0.5;
    const bool by_content = kernel == Kernel::kContent;
    const CarryGroup group = by_content ? CarryGroup{{{0, 12}, {14, 30}}} : CarryGroup{{{0, 30}}};
    const Distance distance = by_content ? content : Distance();
    const CarryWeights w = carry_weights(carry, group, written, distance);
    const size_t n = w.sources.size();
    for (size_t i = 0; i < n; ++i) {
      const int32_t pos = w.sources[i];
      const CarryWeights rest = carry_weights(carry, group, subtract(written, Runs{{pos, pos + 1}}), distance);
      const auto u =
          static_cast<size_t>(std::find(rest.targets.begin(), rest.targets.end(), pos) - rest.targets.begin());
      for (size_t j = 0; j < n; ++j) {
        const float want = j == i ? 0 : rest.w[u * (n - 1) + j - (j > i ? 1 : 0)];
        EXPECT_NEAR(w.left_out[i * n + j], want, 1e-5) << static_cast<int>(kernel) << ' ' << i << ' ' << j;
      }
    }
  }
}

}  // namespace
}  // namespace kvilt
