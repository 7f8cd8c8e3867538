// Scores, distances and intervals against values computed by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "eval/score.h"
#include "eval/statistics.h"

namespace kvilt {
namespace {

TEST(Score, SquadNormalisation) {
  EXPECT_EQ(normalise_answer("  The Rhine, a River! "), "rhine river");
  EXPECT_EQ(normalise_answer("an"), "");
}

TEST(Score, F1TakesTheBestAnswerAndTheFirstLine) {
  // "rhine river" against "the river Rhine in Basel": 2 common, precision 2/4, recall 2/2: F1 = 2/3.
  EXPECT_NEAR(score_answer(Metric::kF1, {"Rhine River"}, "the river Rhine in Basel"), 2.0 / 3, 1e-12);
  EXPECT_DOUBLE_EQ(score_answer(Metric::kF1, {"Elbe", "Rhine"}, "\n Rhine.\nBecause it is long."), 1);
  EXPECT_DOUBLE_EQ(score_answer(Metric::kF1, {"Rhine"}, "Elbe"), 0);
  // A repeated word counts once: precision 1/3, recall 1.
  EXPECT_DOUBLE_EQ(score_answer(Metric::kF1, {"no"}, "no no no"), 0.5);
  EXPECT_DOUBLE_EQ(score_answer(Metric::kF1, {"x"}, ""), 0);
}

TEST(Score, ExactRecallContains) {
  EXPECT_DOUBLE_EQ(score_answer(Metric::kExact, {"The Rhine"}, "rhine.\nmore"), 1);
  EXPECT_DOUBLE_EQ(score_answer(Metric::kExact, {"The Rhine"}, "rhine river"), 0);
  EXPECT_DOUBLE_EQ(score_answer(Metric::kRecall, {"12", "34", "56", "78"}, "12 and\n 56"), 0.5);
  EXPECT_DOUBLE_EQ(score_answer(Metric::kContains, {"AB", "cd"}, "ab, CD"), 1);
  EXPECT_DOUBLE_EQ(score_answer(Metric::kContains, {"AB", "cd"}, "ab"), 0);
}

bool contains(const char* answer, const char* text) { return score_answer(Metric::kContains, {answer}, text) == 1; }

TEST(Score, ANumberIsNotFoundInALongerOne) {
  EXPECT_FALSE(contains("3", "The final answer is 13"));
  EXPECT_FALSE(contains("3", "30 and 113, 33"));
  EXPECT_TRUE(contains("3", "13, 31 and 3"));
  EXPECT_TRUE(contains("3", "it is $3.")) << "what is no digit may follow";
  EXPECT_FALSE(contains("room 12", "Room 123"));
  EXPECT_TRUE(contains("room 12", "Room 123, room 12"));
  EXPECT_FALSE(contains("3", "it is 3.5"));
  EXPECT_FALSE(contains("3", "0.3"));
  EXPECT_TRUE(contains("3.5", "it is 3.5."));
  EXPECT_TRUE(contains("18", "18."));
  EXPECT_TRUE(contains("18", "13, 18, 20")) << "a list";
  EXPECT_FALSE(contains("500", " $1,500"));
  EXPECT_TRUE(contains("1500", " $1,500."));
  EXPECT_TRUE(contains("70000", "70,000"));
  EXPECT_TRUE(contains("70,000", "about 70000 of them"));
  EXPECT_TRUE(contains("1234567", "1,234,567"));
  EXPECT_FALSE(contains("7000", "70,000"));
  EXPECT_TRUE(contains("-5", "It is -5."));
  EXPECT_TRUE(contains("", "anything"));
  EXPECT_DOUBLE_EQ(score_answer(Metric::kRecall, {"12", "34"}, "1234 and 34"), 0.5);
}

TEST(Score, AWordIsNotFoundInALongerOne) {
  EXPECT_FALSE(contains("one", "None"));
  EXPECT_FALSE(contains("VAL", "the value"));
  EXPECT_TRUE(contains("THE", "the value"));
  EXPECT_FALSE(contains("stock_price", "get_stock_price"));
  EXPECT_FALSE(contains("get_stock", "get_stock_price"));
  EXPECT_TRUE(contains("stock_price", "get_stock_price or stock_price"));
  EXPECT_TRUE(contains("3", "13 and 3rd, and 3"));
  EXPECT_TRUE(contains("Rhine", "(Rhine)"));
  EXPECT_TRUE(contains("\xe6\x9d\xb1", "\xe6\x9d\xb1\xe4\xba\xac")) << "no borders in what has no spaces";
}

TEST(Score, AToolIsWhatStandsBeforeTheQuotationMark) {
  const auto right = [](const char* name, const char* text) {
    return score_answer(Metric::kQuoted, {name}, text) == 1;
  };
  EXPECT_TRUE(right("stock_price", "stock_price\", since ..."));
  EXPECT_TRUE(right("stock_price", "stock_price"));
  EXPECT_FALSE(right("stock_price", "get_stock_price\"."));
  EXPECT_FALSE(right("stock_price", "get_weather\", not \"stock_price\"."));
}

TEST(Score, MetricsHaveNames) {
  EXPECT_EQ(*parse_metric("em"), Metric::kExact);
  EXPECT_FALSE(parse_metric("bleu").ok());
}

TEST(Statistics, MeansAndIntervals) {
  EXPECT_FALSE(mean_with_interval({}).has_value());
  const auto one = mean_with_interval({2});
  EXPECT_EQ(one->low, 2);
  EXPECT_EQ(one->high, 2);
  std::vector<double> values;  // mean 0.5, sd 0.5, n 100: the interval is about 0.5 +- 1.96 * 0.05
  for (int i = 0; i < 100; ++i) values.push_back(i % 2);
  const auto many = mean_with_interval(values);
  EXPECT_DOUBLE_EQ(many->mean, 0.5);
  EXPECT_NEAR(many->low, 0.402, 0.02);
  EXPECT_NEAR(many->high, 0.598, 0.02);
  EXPECT_EQ(mean_with_interval(values)->low, many->low);
  EXPECT_DOUBLE_EQ(median_of({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median_of({4, 1, 2, 3}), 2.5);
}

TEST(Statistics, PairedRatioIsGeometric) {
  // (0.001 + 0.001) / (0.003 + 0.001) = 1/2 and (0.007 + 0.001) / (0.003 + 0.001) = 2: geometric mean 1.
  const auto ratio = paired_ratio({0.001, 0.007}, {0.003, 0.003});
  EXPECT_NEAR(ratio->mean, 1, 1e-12);
  EXPECT_NEAR(ratio->low, 0.5, 1e-12);
  EXPECT_NEAR(ratio->high, 2, 1e-12);
  EXPECT_NEAR(paired_ratio({0.009}, {0.001})->mean, 5, 1e-9);
}

}  // namespace
}  // namespace kvilt
