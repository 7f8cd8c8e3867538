#include "base/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace kvilt {
namespace {

TEST(Divergence, ByHand) {
  const Reference half({0, 0});
  const float third = std::log(2.0f);  // probabilities 1/3, 2/3
  EXPECT_NEAR(half.kl(std::vector<float>{0, third}), 0.5 * std::log(1.5) + 0.5 * std::log(0.75), 1e-6);
  EXPECT_NEAR(half.kl(std::vector<float>{7, 7}), 0, 1e-7);
  EXPECT_EQ(Reference({1, 3, 3}).top(), 1);
  EXPECT_NEAR(half.log_probability(1), std::log(0.5), 1e-6);
}

TEST(Divergence, AgreesWithDouble) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 5);
  std::vector<float> full(10007), method(10007);
  for (size_t i = 0; i < full.size(); ++i) {
    full[i] = normal(rng);
    method[i] = full[i] + 0.1f * normal(rng);
  }
  const auto lse = [](const std::vector<float>& x) {
    double sum = 0;
    for (const float v : x) sum += std::exp(double{v});
    return std::log(sum);
  };
  double kl = 0;
  for (size_t i = 0; i < full.size(); ++i) {
    const double p = std::exp(full[i] - lse(full));
    kl += p * ((full[i] - lse(full)) - (method[i] - lse(method)));
  }
  EXPECT_GT(kl, 0.005);
  EXPECT_NEAR(Reference(full).kl(method), kl, 1e-5);
}

TEST(Divergence, MostLikelyAgreesWithTheSimplestLoop) {
  std::mt19937 rng(7);
  for (const size_t n : {1u, 15u, 16u, 17u, 1023u, 1024u, 1025u, 5000u}) {
    for (int round = 0; round < 50; ++round) {
      std::vector<float> logits(n);
      for (float& x : logits) x = static_cast<float>(static_cast<int>(rng() % 200) - 300);  // negative, with ties
      if (round % 5 == 0) logits[rng() % n] = std::numeric_limits<float>::quiet_NaN();
      if (round % 7 == 0) logits[n - 1] = 5;
      size_t best = 0;
      for (size_t i = 1; i < n; ++i) best = logits[i] > logits[best] ? i : best;
      EXPECT_EQ(most_likely(logits), static_cast<int32_t>(best)) << n << " " << round;
    }
  }
}

TEST(Divergence, MaskedTokensCount) {
  const Reference r({0, -INFINITY, 1});
  EXPECT_TRUE(std::isfinite(r.kl(std::vector<float>{0, 0, 1})));
  EXPECT_GT(Reference({0, 0}).kl(std::vector<float>{0, -INFINITY}), 100);
}

}  // namespace
}  // namespace kvilt
