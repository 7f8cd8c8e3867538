#include "forward/expert_routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace kvilt {
namespace {

std::vector<std::vector<float>> weights_of(const ExpertRouting& routing, int64_t rows, int experts) {
  std::vector<std::vector<float>> out(static_cast<size_t>(rows), std::vector<float>(static_cast<size_t>(experts), 0));
  for (int e = 0; e < experts; ++e) {
    int64_t last = -1;
    for (const RoutedRow& routed : routing.rows_of(e)) {
      EXPECT_GT(routed.row, last) << "rows of an expert rise";
      last = routed.row;
      out[routed.row][e] = routed.weight;
    }
  }
  return out;
}

TEST(ExpertRouting, TakesTheLargestProbabilities) {
  const float logits[] = {std::log(1.0f), std::log(4.0f), std::log(3.0f), std::log(2.0f),
                          std::log(5.0f), std::log(2.0f), std::log(2.0f), std::log(1.0f)};
  ExpertRouting routing;
  routing.route({logits, 2, 4}, 2, true);
  auto w = weights_of(routing, 2, 4);
  EXPECT_FLOAT_EQ(w[0][1], 4.0f / 7);
  EXPECT_FLOAT_EQ(w[0][2], 3.0f / 7);
  EXPECT_FLOAT_EQ(w[1][0], 5.0f / 7);
  EXPECT_FLOAT_EQ(w[1][1], 2.0f / 7);  // of equal ones the first
  EXPECT_EQ(w[0][0] + w[0][3] + w[1][2] + w[1][3], 0);
  routing.route({logits, 2, 4}, 2, false);
  w = weights_of(routing, 2, 4);
  EXPECT_FLOAT_EQ(w[0][1], 0.4f);
  EXPECT_FLOAT_EQ(w[0][2], 0.3f);
  EXPECT_FLOAT_EQ(w[1][0], 0.5f);
}

TEST(ExpertRouting, EqualsSortingAndDoesNotDependOnOtherRows) {
  constexpr int kExperts = 13, kTop = 5;
  std::mt19937 random(3);
  std::vector<float> logits(40 * kExperts);
  for (float& x : logits) x = static_cast<float>(static_cast<int>(random() % 9)) - 4;  // many ties
  ExpertRouting routing, single;
  routing.route({logits.data(), 40, kExperts}, kTop, false);
  const auto all = weights_of(routing, 40, kExperts);
  for (int64_t r = 0; r < 40; ++r) {
    const float* row = &logits[r * kExperts];
    single.route({row, 1, kExperts}, kTop, false);
    EXPECT_EQ(weights_of(single, 1, kExperts)[0], all[r]);
    std::vector<int> order(kExperts);
    for (int e = 0; e < kExperts; ++e) order[e] = e;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
    for (int i = 0; i < kExperts; ++i) {
      EXPECT_EQ(all[r][order[i]] > 0, i < kTop);
    }
  }
  routing.route({logits.data(), 3, kExperts}, kExperts, true);  // all of them
  for (int e = 0; e < kExperts; ++e) EXPECT_EQ(routing.rows_of(e).size(), 3u);
}

TEST(ExpertRouting, DamagedWeightsDoNoHarm) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float logits[] = {nan, nan, nan, 1, nan, 2};
  ExpertRouting routing;
  routing.route({logits, 2, 3}, 2, true);
  size_t rows = 0;
  for (int e = 0; e < 3; ++e) rows += routing.rows_of(e).size();
  EXPECT_EQ(rows, 4u);
}

}  // namespace
}  // namespace kvilt
