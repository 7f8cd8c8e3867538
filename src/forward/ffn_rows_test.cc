// Which rows run the FFN: by hand on a few rows; blocks, recent rows and ties.
#include "forward/ffn_rows.h"

#include <gtest/gtest.h>

#include <numeric>

namespace kvilt {
namespace {

std::vector<uint8_t> chosen(const FfnRule& rule, std::vector<float> norms, int32_t first_pos = 0,
                            int32_t prompt_len = 1 << 20, bool experts = false) {
  std::vector<int32_t> pos(norms.size());
  std::iota(pos.begin(), pos.end(), first_pos);
  std::vector<float> residual(norms.size(), 1.0f);
  const auto n = static_cast<int64_t>(norms.size());
  std::vector<uint8_t> out(norms.size(), 9);
  choose_ffn_rows(rule, {2, prompt_len, pos, {norms.data(), n, 1}, {residual.data(), n, 1}, experts}, out.data());
  return out;
}
using Rows = std::vector<uint8_t>;

TEST(FfnRows, SharesOfTheMass) {
  FfnRule rule;
  rule.recent = 0;
  const std::vector<float> norms = {1, -4, 2, 3};  // total 10; in order: row 1 (.4), row 3 (.7), row 2 (.9), row 0
  rule.mass = rule.deep_mass = 0.75;
  EXPECT_EQ(chosen(rule, norms), (Rows{0, 1, 0, 1}));
  rule.mass = 0.7;  // the row that reaches the mass is out
  EXPECT_EQ(chosen(rule, norms), (Rows{0, 1, 0, 0}));
  rule.mass = 0;
  EXPECT_EQ(chosen(rule, norms), (Rows{0, 1, 0, 0})) << "the first always";
  rule.mass = 1;
  EXPECT_EQ(chosen(rule, norms), (Rows{1, 1, 1, 1}));
  rule.mass = 0.5;
  EXPECT_EQ(chosen(rule, {0, 0, 0}), (Rows{1, 1, 1})) << "nothing to go by";
  EXPECT_EQ(chosen(rule, {1, 1, 1, 1}), (Rows{1, 0, 0, 0})) << "lower positions first";
  rule.layer_begin = 3;
  EXPECT_EQ(chosen(rule, norms), (Rows{1, 1, 1, 1}));
}

TEST(FfnRows, RecentRowsAlways) {
  FfnRule rule;
  rule.mass = rule.deep_mass = 0;
  rule.recent = 2;
  EXPECT_EQ(chosen(rule, {5, 1, 1, 1}, 0, 4), (Rows{1, 0, 1, 1}));
  EXPECT_EQ(chosen(rule, {5, 1, 1, 1}, 0, 5), (Rows{1, 0, 0, 1}));
}

TEST(FfnRows, BlocksChooseForThemselves) {
  FfnRule rule;
  rule.mass = rule.deep_mass = 0;
  rule.recent = 0;
  EXPECT_EQ(chosen(rule, {9, 8, 1, 2}, kFfnBlock - 2), (Rows{1, 0, 0, 1}));
  EXPECT_EQ(chosen(rule, {9, 8, 1, 2}, 0), (Rows{1, 0, 0, 0}));
}

TEST(FfnRows, RandomTakesAsMany) {
  FfnRule rule;
  rule.mass = rule.deep_mass = 0.5;
  rule.recent = 0;
  std::vector<float> norms(200);
  for (size_t i = 0; i < norms.size(); ++i) norms[i] = 1.0f + static_cast<float>(i % 7);
  const Rows by_mass = chosen(rule, norms);
  rule.by = FfnRule::By::kRandom;
  const Rows random = chosen(rule, norms);
  EXPECT_EQ(std::accumulate(random.begin(), random.end(), 0), std::accumulate(by_mass.begin(), by_mass.end(), 0));
  EXPECT_NE(random, by_mass);
  rule.seed = 2;
  EXPECT_NE(chosen(rule, norms), random);
}

// In layers of experts the rows below a share of the mean are left out, whatever the mass.
TEST(FfnRows, ExpertsByThreshold) {
  FfnRule rule;
  rule.recent = 0;
  rule.expert_threshold = 0.8;
  const std::vector<float> norms = {1, -4, 2, 3};  // mean 2.5: rows from 2 on
  EXPECT_EQ(chosen(rule, norms, 0, 9, true), (Rows{0, 1, 1, 1}));
  EXPECT_EQ(chosen(rule, norms, 0, 9, false), (Rows{1, 1, 1, 1})) << "a dense layer: the mass, which is 1";
  rule.expert_threshold = 1.3;
  EXPECT_EQ(chosen(rule, norms, 0, 9, true), (Rows{0, 1, 0, 0}));
  rule.expert_threshold = 50;
  EXPECT_EQ(chosen(rule, norms, 0, 9, true), (Rows{0, 1, 0, 0})) << "the first always";
  rule.expert_threshold = 0.01;
  EXPECT_EQ(chosen(rule, norms, 0, 9, true), (Rows{1, 1, 1, 1}));
  rule.expert_threshold = 1.3;
  rule.layer_begin = 3;
  EXPECT_EQ(chosen(rule, norms, 0, 9, true), (Rows{1, 1, 1, 1}));
}

// A prompt that starts again with a part of its answer: the prompt's rows are chosen as at first, the answer's all run.
TEST(FfnRows, RowsOfTheAnswerRun) {
  FfnRule rule;
  rule.mass = rule.deep_mass = 0;
  rule.recent = 1;
  EXPECT_EQ(chosen(rule, {5, 1, 1, 1}, 0, 4), (Rows{1, 0, 0, 1}));
  rule.answer = 4;
  EXPECT_EQ(chosen(rule, {5, 1, 1, 1, 1, 9}, 0, 6), (Rows{1, 0, 0, 1, 1, 1}));
}

}  // namespace
}  // namespace kvilt
