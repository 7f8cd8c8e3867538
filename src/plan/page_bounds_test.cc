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
  std::vector<double> out(static_cast<size_t>(pages.pages()), 0);
  for (size_t n = 0; n < out.size(); ++n) {
    const Mat<const float> block = pages.block(static_cast<int32_t>(n) / PageBounds::kBlock);
    for (int64_t e = 0; e < block.rows; ++e) out[n] += double{weights[e]} * block.row(e)[n % PageBounds::kBlock];
  }
  return out;
}

// Pages that are full and that are not, in blocks that fill.
TEST(PageBounds, TakeNoMoreThanTheySay) {
  PageBounds pages(kSize, 2);
  const std::vector<float> key(kSize, 1.0f);
  for (int i = 0; i < 1000; ++i) {
    pages.add(key);
    if (i < 64) continue;
    int64_t bytes = 2 * kSize * 4;  // of the open page
    for (int32_t b = 0; b < pages.blocks(); ++b) bytes += pages.block(b).rows * pages.block(b).stride * 4;
    EXPECT_LE(bytes, PageBounds::bytes(kSize, (pages.keys() + 1) / 2)) << i;
    EXPECT_GE(bytes, PageBounds::bytes(kSize, (pages.keys() + 1) / 2) / 2) << i;
  }
}

// Kernels read the columns behind the last page as well.
TEST(PageBounds, ThereAreZerosWhereThereIsNoPageYet) {
  PageBounds pages(kSize, 2);
  const std::vector<float> key(kSize, 1.0f);
  for (int i = 0; i < 2 * (PageBounds::kBlock + 3) + 1; ++i) pages.add(key);
  ASSERT_EQ(pages.blocks(), 2);
  const Mat<const float> block = pages.block(1);
  ASSERT_EQ(block.cols, PageBounds::kBlock);
  for (int64_t e = 0; e < block.rows; ++e) {
    for (int64_t n = 0; n < block.cols; ++n) EXPECT_EQ(block.row(e)[n], n < 3 ? 1 : 0);
  }
}

// Many keys at once are the same as one by one, whatever the pages' ends.
TEST(PageBounds, KeysMayComeTogether) {
  std::mt19937 rng(7);
  for (const int E : {kSize, 40}) {
    for (const int page : {1, 3, 16}) {
      PageBounds one_by_one(E, page), together(E, page);
      for (int round = 0; round < 60; ++round) {
        const int n = static_cast<int>(rng() % 40);
        const std::vector<float> keys = normal_floats(rng, n * E);
        together.add(keys);
        for (int i = 0; i < n; ++i) one_by_one.add(std::span(keys).subspan(static_cast<size_t>(i * E), E));
        ASSERT_EQ(together.keys(), one_by_one.keys());
        ASSERT_EQ(together.blocks(), one_by_one.blocks());
      }
      ASSERT_GT(together.pages(), PageBounds::kBlock) << "power";
      for (int32_t b = 0; b < together.blocks(); ++b) {
        const Mat<const float> all = together.block(b), single = one_by_one.block(b);
        EXPECT_TRUE(std::equal(all.data, all.data + all.rows * all.stride, single.data)) << E << " " << page;
      }
    }
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
      ASSERT_EQ(pages.pages(), (n + 1) / page);
      const std::vector<float> q = normal_floats(rng, kSize), r = normal_floats(rng, kSize);
      std::vector<float> of_one(2 * kSize, 0), of_both(2 * kSize, 0);
      PageBounds::add_query(q, of_one);
      PageBounds::add_query(q, of_both);
      PageBounds::add_query(r, of_both);
      const std::vector<double> one = bounds_of(pages, of_one), both = bounds_of(pages, of_both);
      for (int j = 0; j < pages.pages() * page; ++j) {
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
