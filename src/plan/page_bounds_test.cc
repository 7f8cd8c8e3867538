// The bound of a page against the scores of its keys.
#include "plan/page_bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kvilt {
namespace {

constexpr int kSize = 8;

std::vector<float> normal_floats(std::mt19937& rng, int n) {
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = normal(rng);
  return out;
}

double dot(std::span<const float> a, std::span<const float> b) {
  double out = 0;
  for (size_t e = 0; e < a.size(); ++e) out += double{a[e]} * b[e];
  return out;
}

std::vector<double> bounds_of(const PageBounds& pages, std::span<const float> weights) {
  const Mat<const float> extremes = pages.extremes();
  std::vector<double> out(static_cast<size_t>(pages.pages()), 0);
  for (int64_t e = 0; e < extremes.rows; ++e) {
    for (size_t n = 0; n < out.size(); ++n) out[n] += double{weights[e]} * extremes.row(e)[n];
  }
  return out;
}

// Pages that are full and that are not, in rooms that grow.
TEST(PageBounds, TakeNoMoreThanTheySay) {
  PageBounds pages(kSize, 2);
  const std::vector<float> key(kSize, 1.0f);
  for (int i = 0; i < 1000; ++i) {
    pages.add(key);
    if (i < 64) continue;
    const auto of = pages.extremes();
    EXPECT_LE(of.rows * of.stride * 4, PageBounds::bytes(kSize, pages.pages())) << i;
    EXPECT_GE(of.rows * of.stride * 4, PageBounds::bytes(kSize, pages.pages()) / 2) << i;
  }
}

TEST(PageBounds, NoKeyScoresMoreThanItsPage) {
  std::mt19937 rng(5);
  int tight = 0, below = 0;
  for (const int page : {1, 3, 16}) {
    PageBounds pages(kSize, page);
    std::vector<std::vector<float>> keys;
    for (int n = 0; n < 500; ++n) {
      keys.push_back(normal_floats(rng, kSize));
      pages.add(keys.back());
      if (n % 50 != 0 && n != 499) continue;
      ASSERT_EQ(pages.keys(), n + 1);
      ASSERT_EQ(pages.pages(), n / page + 1);
      const std::vector<float> q = normal_floats(rng, kSize), r = normal_floats(rng, kSize);
      std::vector<float> of_one(2 * kSize, 0), of_both(2 * kSize, 0);
      PageBounds::add_query(q, of_one);
      PageBounds::add_query(q, of_both);
      PageBounds::add_query(r, of_both);
      const std::vector<double> one = bounds_of(pages, of_one), both = bounds_of(pages, of_both);
      for (int j = 0; j <= n; ++j) {
        const double score = dot(q, keys[j]), bound = one[j / page];
        ASSERT_LE(score, bound + 1e-5);
        ASSERT_LE(score + dot(r, keys[j]), both[j / page] + 1e-5);
        tight += score > bound - 1e-5;
        below += score < bound - 1e-5;
      }
    }
  }
  EXPECT_GT(tight, 1000) << "power: a page of one key has its score for a bound";
  EXPECT_GT(below, 1000) << "power: others are loose";
}

// The paper's formula, and no looser.
TEST(PageBounds, IsTheSumOverChannelsOfTheGreaterProduct) {
  std::mt19937 rng(6);
  PageBounds pages(kSize, 4);
  std::vector<float> least(kSize, 1e9f), most(kSize, -1e9f);
  for (int n = 0; n < 4; ++n) {
    const std::vector<float> key = normal_floats(rng, kSize);
    pages.add(key);
    for (int e = 0; e < kSize; ++e) {
      least[e] = std::min(least[e], key[e]);
      most[e] = std::max(most[e], key[e]);
    }
  }
  const std::vector<float> q = normal_floats(rng, kSize);
  std::vector<float> weights(2 * kSize, 0);
  PageBounds::add_query(q, weights);
  double expected = 0;
  for (int e = 0; e < kSize; ++e) expected += std::max(double{q[e]} * least[e], double{q[e]} * most[e]);
  EXPECT_NEAR(bounds_of(pages, weights)[0], expected, 1e-5);
}

}  // namespace
}  // namespace kvilt
