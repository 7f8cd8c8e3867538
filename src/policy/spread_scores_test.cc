// Scores by how much the contexts of means differ.
#include "policy/spread_scores.h"

#include <gtest/gtest.h>

#include "policy/plans_for_test.h"

namespace kvilt {
namespace {

PromptLayout three_of_four() {
  PromptLayout out{5, 0, {{0, 4}}};
  out.spread = {{1, 4}, {3, 12}, {}, {0, 0}, {}};  // of K 4 in all, of V 16: a quarter, three quarters and nothing
  return out;
}

TEST(SpreadScores, AScoreIsMultipliedByTheChange) {
  std::vector<double> score(5, 2);
  weigh_by_spread(three_of_four(), 2, score);
  EXPECT_DOUBLE_EQ(score[0], 2 * (0.25 + 0.25));
  EXPECT_DOUBLE_EQ(score[1], 2 * (0.75 + 0.75));
  EXPECT_DOUBLE_EQ(score[3], 0) << "it is the same in all contexts";
  EXPECT_DOUBLE_EQ(score[2], 2 * 2.0 / 3) << "as those that are known, on average";
  EXPECT_DOUBLE_EQ(score[4], score[2]);
  std::vector<double> root(5, 1);
  weigh_by_spread(three_of_four(), 1, root);
  EXPECT_DOUBLE_EQ(root[1], std::sqrt(1.5));
}

TEST(SpreadScores, WhatIsNotKnownChangesNothing) {
  const std::vector<double> was{5, 4, 3, 2, 1};
  const auto weighed = [&](const PromptLayout& layout, double power) {
    std::vector<double> score = was;
    weigh_by_spread(layout, power, score);
    return score;
  };
  EXPECT_EQ(weighed(three_of_four(), 0), was);
  PromptLayout none = three_of_four();
  none.spread.clear();
  EXPECT_EQ(weighed(none, 1), was);
  none.spread.assign(5, {});
  EXPECT_EQ(weighed(none, 1), was);
  none.spread.assign(5, {0, 0});
  EXPECT_EQ(weighed(none, 1), was) << "contexts that were the same";
  EXPECT_NE(weighed(three_of_four(), 1), was) << "power";
}

// A mean whose contexts were the same is a copy: that they do not differ says nothing of the next one.
TEST(SpreadScores, ContextsThatWereTheSameSayNothing) {
  PromptLayout prompt{5, 0, {{0, 2}, {2, 4}}};
  prompt.spread = {{1, 1}, {3, 3}, {1e-4f, 1e-4f}, {0, 0}, {}};
  const auto weighed = [&] {
    std::vector<double> score(5, 1);
    weigh_by_spread(prompt, 2, score);
    return score;
  };
  EXPECT_NEAR(weighed()[2], 1, 1e-4) << "as the others, on average";
  EXPECT_EQ(weighed()[3], weighed()[2]);
  EXPECT_NEAR(weighed()[1], 1.5, 1e-4);
  prompt.spread[2] = {0.2f, 0.2f};
  EXPECT_LT(weighed()[2], 0.2) << "power: it changes little, and that is known";
}

// Both looks alike see all tokens: what the contexts say decides, for mend and for auto.
TEST(SpreadScores, TokensThatDifferMoreAreComputed) {
  const ModelConfig config = config_of(2);
  PromptLayout prompt{1100, 0, {{0, 500}, {500, 1000}}};
  prompt.seasoned = 1000;
  prompt.spread.resize(1100);
  for (size_t i = 0; i < 1000; ++i) prompt.spread[i] = {1, i % 5 == 3 ? 2.0f : 1.0f};
  const auto computed = [&](const char* name, std::map<std::string, std::string> params) {
    params.try_emplace("r", "0.2");
    if (std::string(name) == "mend") params["anchors"] = "0";
    const auto made = policy(name, params);
    Plan plan = checked_plan(*made, prompt, config);
    Probe flat;
    flat.score.assign(1100, 1);
    const Probe probes[] = {flat, flat};
    for (size_t stage = 0; stage + 1 < plan.stages.size(); ++stage)
      made->refine(prompt, config, static_cast<int>(stage), std::span(probes).first(stage + 1), plan);
    int64_t out = 0;
    for (int32_t i = 3; i < 1000; i += 5) out += contains(plan.stages.back().write_at(1), i);
    return out;
  };
  EXPECT_EQ(computed("mend", {}), 200);
  EXPECT_LE(computed("mend", {{"spread", "0"}}), 60);
  EXPECT_GE(computed("auto", {}), 160) << "its anchors are strided";
  EXPECT_LE(computed("auto", {{"spread", "0"}}), 60);
  // As r grows it goes, unless it is asked for: of 300 chosen tokens a fifth are among these by chance.
  EXPECT_EQ(computed("mend", {{"r", "0.2"}}), 200);
  EXPECT_EQ(computed("mend", {{"r", "0.3"}, {"spread", "1"}}), 200);
  EXPECT_LE(computed("mend", {{"r", "0.3"}}), 80);
  EXPECT_EQ(computed("mend", {{"r", "0.25"}}), 200) << "half the power";
}

}  // namespace
}  // namespace kvilt
