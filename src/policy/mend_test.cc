// mend and auto as plans: what is computed, which looks there are, when pieces are used at all.
#include <gtest/gtest.h>

#include "policy/plans_for_test.h"

namespace kvilt {
namespace {

TEST(Mend, GroupsArePiecesAndAnchorsAreStrided) {
  const auto anchored = policy("mend", {{"r", "0.33"}, {"anchors", "1"}});
  const Plan plan = checked_plan(*anchored, layout(), config_of(2));
  ASSERT_EQ(plan.stages.size(), 1u);  // nothing to look for
  EXPECT_EQ(plan.stages[0].sets[0], (Runs{{5, 6}, {8, 9}, {11, 12}, {14, 15}, {16, 20}}));
  ASSERT_EQ(plan.stages[0].carry->groups.size(), 1u);  // small pieces near each other make one
  EXPECT_EQ(plan.stages[0].carry->groups[0].parts, (std::vector<kvilt::Run>{{4, 10}, {10, 16}}));
  const Plan apart = checked_plan(*policy("mend", {{"carry", "gaussian"}}), layout(), config_of(2));
  ASSERT_EQ(apart.stages[1].carry->groups.size(), 2u);
  EXPECT_EQ(apart.stages[1].carry->groups[1].parts, (std::vector<kvilt::Run>{{10, 16}}));
  const auto mend = policy("mend", {{"r", "0.25"}, {"anchors", "0"}});
  Plan two = checked_plan(*mend, layout(), config_of(2));
  ASSERT_EQ(two.stages.size(), 2u);
  EXPECT_EQ(two.stages[0].probes[0].key_end, 16);
  mend->refine(layout(), config_of(2), 0, scores({{17, 9}, {2, 9}, {8, 5}, {5, 4}, {12, 3}}), two);
  EXPECT_EQ(two.stages[1].sets[0], (Runs{{5, 6}, {8, 9}, {12, 13}, {16, 20}}));
  // 5 of 12 tokens: one strided token of each piece, and 3 by score.
  const auto half = policy("mend", {{"r", "0.42"}, {"anchors", "0.4"}});
  Plan mixed = checked_plan(*half, layout(), config_of(2));
  half->refine(layout(), config_of(2), 0, scores({{17, 9}, {2, 9}, {8, 5}, {5, 4}, {12, 3}}), mixed);
  EXPECT_EQ(mixed.stages[1].sets[0], (Runs{{5, 6}, {7, 9}, {12, 14}, {16, 20}}));
  // Long pieces are cut into even groups.
  const Plan cut = policy("mend")->plan({2000, 0, {{0, 1100}}}, config_of(2));
  EXPECT_EQ(cut.stages[1].carry->groups.size(), 3u);
  const Plan several = policy("mend")->plan({2000, 0, {{0, 300}, {310, 500}, {500, 540}, {540, 600}}}, config_of(2));
  ASSERT_EQ(several.stages[1].carry->groups.size(), 2u);
  EXPECT_EQ(several.stages[1].carry->groups[0].range(), (kvilt::Run{0, 500}));
  EXPECT_EQ(several.stages[1].carry->groups[1].range(), (kvilt::Run{500, 600}));
  // What is between pieces counts: a chunk takes a whole group.
  const Plan apart_by_new = policy("mend")->plan({4000, 0, {{0, 100}, {300, 400}, {1000, 1100}}}, config_of(2));
  ASSERT_EQ(apart_by_new.stages[1].carry->groups.size(), 2u);
  EXPECT_EQ(apart_by_new.stages[1].carry->groups[1].range(), (kvilt::Run{1000, 1100}));
}

TEST(Mend, AnchorsOfMeansGoAsTheBudgetGrows) {
  PromptLayout prompt{1100, 0, {{0, 1000}}};
  const auto strided = [&](const std::map<std::string, std::string>& params) {
    const auto mend = policy("mend", params);
    Plan plan = checked_plan(*mend, prompt, config_of(2));
    Probe falling;  // the highest scores are those of the piece's first tokens
    for (int pos = 0; pos < prompt.prompt_len; ++pos) falling.score.push_back(2000 - pos);
    mend->refine(prompt, config_of(2), 0, {&falling, 1}, plan);
    int64_t alone = 0;  // computed tokens whose neighbours are not: the anchors behind those that have high scores
    for (const kvilt::Run& run : plan.stages.back().sets[0]) alone += run.size() == 1;
    EXPECT_EQ(count(intersect(plan.stages.back().sets[0], Runs{{0, 1000}})),
              std::llround(std::stod(params.at("r")) * 1000));
    return alone;
  };
  const auto exact = strided({{"r", "0.3"}});
  prompt.seasoned = 500;
  const auto half = strided({{"r", "0.3"}});
  prompt.seasoned = 1000;
  const auto means = strided({{"r", "0.3"}});
  EXPECT_EQ(exact, 57);  // of 75; the others stand among those of high score
  EXPECT_EQ(half, 28);   // of 38
  EXPECT_EQ(means, 0);
  EXPECT_EQ(strided({{"r", "0.3"}, {"anchors", "0.25"}}), exact) << "given is given";
  const auto low = strided({{"r", "0.15"}});
  prompt.seasoned = 0;
  EXPECT_EQ(strided({{"r", "0.15"}}), low) << "up to the default budget nothing changes";
}

// Six layers: the state is kept at layer 2, so a row that enters takes two thirds of the work.
TEST(Mend, TheLowerHalfEntersWhereThereIsAState) {
  const ModelConfig config = config_of(6);
  const AnnexKind state{AnnexOf::kHiddenBF16, 2};
  PromptLayout prompt{1100, 0, {{0, 500}, {500, 1000}}};
  const auto refined = [&](std::map<std::string, std::string> params) {
    const auto mend = policy("mend", params);
    Plan plan = checked_plan(*mend, prompt, config);
    Probe falling;
    for (int pos = 0; pos < prompt.prompt_len; ++pos) falling.score.push_back(2000 - pos);
    mend->refine(prompt, config, 0, {&falling, 1}, plan);
    EXPECT_TRUE(validate(plan, config, {{0, 1000}}).ok());
    return plan.stages.back();
  };
  const std::map<std::string, std::string> halves{{"r", "0.2"}, {"anchors", "0"}, {"enter", "0.5"}};
  EXPECT_TRUE(refined(halves).entries.empty()) << "nobody kept a state";
  EXPECT_EQ(refined(halves).write_at(0), (Runs{{0, 200}, {1000, 1100}}));
  prompt.annexes = {{state, {{0, 1000}}}};
  const Stage all = refined(halves);  // .2 / (1 - .5 / 3): 240 for the work of 200
  EXPECT_EQ(all.write_at(2), (Runs{{0, 240}, {1000, 1100}}));
  EXPECT_EQ(all.write_at(1), (Runs{{0, 120}, {1000, 1100}}));
  ASSERT_EQ(all.entries.size(), 1u);
  EXPECT_EQ(all.entries[0].state, state);
  EXPECT_EQ(all.entries[0].rows, (Runs{{120, 240}}));
  EXPECT_TRUE(refined({{"r", "0.2"}, {"anchors", "0"}, {"enter", "0"}}).entries.empty());
  // No more than all is computed: of .9 a third of the rows' third is saved, and at 1 nothing enters.
  const Stage most = refined({{"r", "0.9"}, {"anchors", "0"}, {"enter", "1"}});
  EXPECT_EQ(most.write_at(2), (Runs{{0, 1100}}));
  EXPECT_EQ(most.entries[0].rows, (Runs{{700, 1000}}));
  EXPECT_TRUE(refined({{"r", "1"}, {"anchors", "0"}, {"enter", "1"}}).entries.empty());
  // Half of the text has a state: there the lower half of what is chosen enters.
  prompt.annexes = {{state, {{0, 500}}}};
  const Stage some = refined({{"r", "0.55"}, {"anchors", "0"}, {"enter", "0.5"}});
  EXPECT_EQ(some.write_at(2), (Runs{{0, 600}, {1000, 1100}}));
  EXPECT_EQ(some.entries[0].rows, (Runs{{250, 500}}));
  EXPECT_EQ(policy("mend", {{"enter", "0.5"}})->takes_annexes(config), std::vector{state});
  EXPECT_TRUE(policy("mend", {{"enter", "0"}})->takes_annexes(config).empty());
  EXPECT_TRUE(policy("mend", {{"enter", "0.5"}})->takes_annexes(config_of(2)).empty()) << "too few layers";
  EXPECT_TRUE(policy("mend", {{"enter", "0.5"}})->wants_annexes(config).empty()) << "a clean copy serves it";
  EXPECT_EQ(policy("auto", {{"enter", "0.5"}})->takes_annexes(config), std::vector{state});
}

// Of look-alikes every chosen row is computed from its embedding: a small error points to the wrong one there.
TEST(Mend, NothingOfLookAlikesEnters) {
  const ModelConfig config = config_of(6);
  PromptLayout prompt{1100, 0, {{0, 500}, {500, 1000}}};
  prompt.piece_look_alikes = {0.5, 0};
  prompt.annexes = {{{AnnexOf::kHiddenBF16, 2}, {{0, 1000}}}};
  const auto balanced = policy("auto", {{"enter", "0.5"}});
  Plan plan = checked_plan(*balanced, prompt, config);
  Probe flat;
  flat.score.assign(1100, 1);
  const Probe probes[] = {flat, flat};
  for (int stage = 0; stage < 2; ++stage)
    balanced->refine(prompt, config, stage, std::span(probes).first(static_cast<size_t>(stage) + 1), plan);
  const Stage& repair = plan.stages.back();
  EXPECT_EQ(count(intersect(repair.write_at(5), Runs{{0, 500}})), 350);
  EXPECT_EQ(count(intersect(repair.write_at(0), Runs{{0, 500}})), 350);
  const int64_t others = count(intersect(repair.write_at(5), Runs{{500, 1000}}));
  EXPECT_EQ(others, 186);  // .31 / (1 - .5 / 3) of 500
  EXPECT_EQ(count(intersect(repair.write_at(0), Runs{{500, 1000}})), others / 2);
}

ModelConfig half_billion() {  // Qwen2.5-0.5B's shape
  ModelConfig config = config_of(24);
  config.D = 896, config.H = 14, config.G = 2, config.E = 64, config.F = 4864;
  return config;
}

TEST(Auto, UsesPiecesWhereThatSavesAFifthOfTheWork) {
  const auto balanced = policy("auto"), draft = policy("auto", {{"quality", "draft"}});
  const auto uses = [&](const ReusePolicy& p, int32_t reused, int32_t fresh) {
    return p.uses({reused + fresh, 0, {{0, reused}}}, half_billion());
  };
  EXPECT_TRUE(uses(*balanced, 1000, 24));
  EXPECT_FALSE(uses(*balanced, 700, 300));  // the new text is computed in two of the three stages
  EXPECT_TRUE(uses(*draft, 700, 300));
  EXPECT_FALSE(uses(*draft, 150, 850));
  EXPECT_FALSE(uses(*balanced, 100, 10));  // short
  EXPECT_FALSE(uses(*draft, 100, 10));
  EXPECT_FALSE(uses(*policy("auto", {{"r", "0.8"}}), 1000, 24));
  EXPECT_TRUE(policy("naive")->uses({110, 0, {{0, 100}}}, half_billion())) << "power: others take what there is";
  EXPECT_FALSE(policy("auto", {{"quality", "exact"}})->wants_pieces());
  EXPECT_TRUE(balanced->wants_pieces());
}

TEST(Auto, ComputesMoreWhereTheTextIsMadeOfLookAlikes) {
  const ModelConfig config = half_billion();
  PromptLayout layout{1024, 0, {{0, 1000}}};
  Probe probe;
  probe.score.assign(1024, 1);
  const auto computed = [&](const std::map<std::string, std::string>& params, double look_alikes) {
    const auto made = policy("auto", params);
    layout.look_alikes = look_alikes;
    Plan plan = checked_plan(*made, layout, config);
    const Probe probes[] = {probe, probe};
    for (size_t stage = 0; stage + 1 < plan.stages.size(); ++stage)
      made->refine(layout, config, static_cast<int>(stage), std::span(probes).first(stage + 1), plan);
    return count(plan.stages.back().sets[0]);
  };
  const std::map<std::string, std::string> draft{{"quality", "draft"}};
  EXPECT_EQ(computed({}, 0.2), 310 + 24);
  EXPECT_EQ(computed({}, 0.3), 700 + 24);
  EXPECT_EQ(computed(draft, 0.2), 50 + 24);
  EXPECT_EQ(computed(draft, 0.3), 700 + 24);
  EXPECT_EQ(computed({{"r", "0.4"}}, 0.3), 400 + 24) << "who says r gets it";
  EXPECT_EQ(computed({{"r", "0.31"}}, 0.3), 310 + 24);
  EXPECT_EQ(computed({{"r", "0.4"}, {"alike", "0.5"}}, 0.3), 500 + 24);
  EXPECT_EQ(computed({{"alike", "0.31"}}, 0.3), 310 + 24);
  EXPECT_TRUE(policy("auto")->wants_look_alikes());
  EXPECT_FALSE(policy("auto", {{"r", "0.4"}})->wants_look_alikes());
}

// A table among other texts: the share of all pieces hardly shows it, that of its pieces does.
TEST(Auto, ComputesMoreOfOnePieceThatIsMadeOfLookAlikes) {
  const ModelConfig config = half_billion();
  PromptLayout layout{1024, 0, {{0, 400}, {400, 600}, {600, 1000}}};
  layout.look_alikes = 0.1;
  Probe probe;
  probe.score.assign(1024, 1);
  const auto computed = [&](const std::map<std::string, std::string>& params, double of_middle,
                            const kvilt::Run& text) {
    const auto made = policy("auto", params);
    layout.piece_look_alikes = {0.1, of_middle, 0.27};
    Plan plan = checked_plan(*made, layout, config);
    const Probe probes[] = {probe, probe};
    for (size_t stage = 0; stage + 1 < plan.stages.size(); ++stage)
      made->refine(layout, config, static_cast<int>(stage), std::span(probes).first(stage + 1), plan);
    return count(intersect(plan.stages.back().sets[0], Runs{text}));
  };
  EXPECT_EQ(computed({}, 0.27, {0, 1000}), 310) << "power";
  EXPECT_EQ(computed({}, 0.29, {400, 600}), 140);
  EXPECT_EQ(computed({}, 0.29, {0, 1000}), 140 + 248);
  EXPECT_EQ(computed({{"quality", "draft"}}, 0.29, {0, 1000}), 140 + 40);
  EXPECT_EQ(computed({{"r", "0.4"}}, 0.29, {0, 1000}), 400) << "who says r gets it";
  EXPECT_EQ(computed({{"alike", "1"}}, 0.29, {400, 600}), 200);
  layout.pieces = {{0, 400}, {400, 463}, {463, 1000}};
  EXPECT_EQ(computed({}, 0.29, {0, 1000}), 310) << "few tokens say nothing";
  layout.pieces[1].end = layout.pieces[2].begin = 464;
  EXPECT_GT(computed({}, 0.29, {0, 1000}), 310);
  // What it costs counts where pieces are declined: with a quarter of the prompt new, .31 pays and 1 does not.
  const PromptLayout half{1000, 0, {{0, 400}, {400, 750}}, -1, -1, 0, 0, 0, {0, 0}};
  PromptLayout alike = half;
  alike.piece_look_alikes = {0.3, 0.3};
  EXPECT_TRUE(policy("auto")->uses(half, config));
  EXPECT_FALSE(policy("auto")->uses(alike, config));
}

TEST(Auto, KeepsToMarkedTextWhenNobodyChoseAQuality) {
  EXPECT_FALSE(policy("auto", {{"quality", "auto"}})->wants_unmarked());
  for (const char* quality : {"draft", "balanced"}) {
    EXPECT_TRUE(policy("auto", {{"quality", quality}})->wants_unmarked());
    EXPECT_FALSE(policy("auto", {{"quality", quality}, {"text", "marked"}})->wants_unmarked());
  }
  EXPECT_TRUE(policy("auto", {{"quality", "auto"}, {"text", "all"}})->wants_unmarked());
  EXPECT_TRUE(policy("naive")->wants_unmarked());
}

TEST(Auto, WhatTheQuestionLooksAtLooksToo) {
  const PromptLayout long_one{140, 4, {{4, 64}, {64, 124}}};  // 16 fresh
  const auto balanced = policy("auto", {{"r", "0.25"}, {"hop", "0.2"}});
  const ModelConfig config = config_of(2);
  Plan plan = checked_plan(*balanced, long_one, config);
  ASSERT_EQ(plan.stages.size(), 3u);
  const auto probe = [](std::vector<kvilt::Run> high, double score) {
    Probe out;
    out.score.assign(140, 0);
    for (const auto& run : high) std::fill(out.score.begin() + run.begin, out.score.begin() + run.end, score);
    return out;
  };
  const Probe first = probe({{66, 90}, {130, 140}}, 5);
  balanced->refine(long_one, config, 0, {&first, 1}, plan);
  EXPECT_EQ(plan.stages[1].sets[0], (Runs{{66, 90}}));  // .2 of 120
  EXPECT_TRUE(plan.stages[1].discard);
  ASSERT_EQ(plan.stages[1].probes.size(), 1u);
  EXPECT_EQ(plan.stages[1].probes[0].rows, (Runs{{66, 90}}));
  EXPECT_EQ(plan.stages[1].probes[0].key_end, -1);
  EXPECT_TRUE(validate(plan, config, {{0, 124}}).ok());
  // The question would choose 100 .. 106 next; what it looked at leans on 20 .. 26. Each look weighs the same.
  Probe question = probe({{66, 90}}, 5);
  for (size_t i = 100; i < 106; ++i) question.score[i] = 4;
  const Probe looks[] = {question, probe({{20, 26}}, 0.001)};
  balanced->refine(long_one, config, 1, looks, plan);
  const Runs anchors{{11, 12}, {26, 27}, {41, 42}, {56, 57}, {71, 72}, {86, 87}, {101, 102}, {116, 117}, {124, 140}};
  EXPECT_EQ(plan.stages[2].sets[0], unite(anchors, Runs{{20, 26}, {66, 83}}));  // 22 by score
  EXPECT_TRUE(plan.stages[2].carry.has_value());
  const auto one = policy("auto", {{"r", "0.25"}, {"hop", "0"}});
  Plan two = checked_plan(*one, long_one, config);
  ASSERT_EQ(two.stages.size(), 2u);
  one->refine(long_one, config, 0, {&question, 1}, two);
  EXPECT_EQ(two.stages[1].sets[0], unite(anchors, Runs{{66, 90}})) << "power: one look";
  // Where all of a piece is computed anyway, the second stage still has a row.
  const PromptLayout small{10, 0, {{0, 10}}};
  Plan none = checked_plan(*balanced, small, config);
  Probe nothing;
  nothing.score.assign(10, 0);
  balanced->refine(small, config, 0, {&nothing, 1}, none);
  EXPECT_EQ(none.stages[1].probes[0].rows, (Runs{{9, 10}}));
  EXPECT_TRUE(validate(none, config, {{0, 10}}).ok());
}

TEST(Auto, TokensAheadAreOfTheFirstLook) {
  PromptLayout layout{1024, 0, {{0, 1000}}};
  for (const char* quality : {"draft", "balanced"}) {
    for (const double look_alikes : {0.0, 0.3}) {
      layout.look_alikes = look_alikes;
      const Plan plan = checked_plan(*policy("auto", {{"quality", quality}, {"ahead", "4"}}), layout, half_billion());
      EXPECT_EQ(plan.stages[0].ahead, 4);
      for (size_t i = 1; i < plan.stages.size(); ++i) EXPECT_EQ(plan.stages[i].ahead, 0);
      EXPECT_EQ(checked_plan(*policy("auto", {{"quality", quality}}), layout, half_billion()).stages[0].ahead, 0);
    }
  }
}

TEST(Auto, DraftIsMend) {
  const ModelConfig config = config_of(2);
  const auto computed = [&](const std::string& name, std::map<std::string, std::string> params) {
    const auto made = policy(name, params);
    Plan plan = checked_plan(*made, layout(), config);
    made->refine(layout(), config, 0, scores({{8, 5}, {5, 4}, {12, 3}}), plan);
    EXPECT_TRUE(plan.stages.back().carry.has_value());
    return plan.stages.back().sets[0];
  };
  EXPECT_EQ(computed("auto", {{"quality", "draft"}, {"r", "0.25"}}), computed("mend", {{"r", "0.25"}}));
  EXPECT_NE(computed("auto", {{"quality", "draft"}, {"r", "0.1"}}), computed("mend", {{"r", "0.25"}})) << "power";
}

TEST(Auto, WithoutPiecesAllIsComputedOnce) {
  for (const char* quality : {"draft", "balanced", "exact"}) {
    const Plan plan = checked_plan(*policy("auto", {{"quality", quality}}), {20, 4, {}}, config_of(2));
    ASSERT_EQ(plan.stages.size(), 1u) << quality;
    EXPECT_EQ(plan.stages[0].sets[0], (Runs{{4, 20}})) << quality;
  }
}

}  // namespace
}  // namespace kvilt
