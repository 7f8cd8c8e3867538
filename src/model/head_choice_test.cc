#include "model/head_choice.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

using Scores = std::vector<double>;

// 2 layers of 3 heads.
HeadProfile profile_of(Scores ablation) {
  HeadProfile out;
  out.layers = 2, out.kv_heads = 3, out.tokens = 100;
  out.ablation = std::move(ablation);
  out.edge_max = {.1, .2, .3, .4, .5, .6};
  out.edge_mean = {.01, .02, .03, .04, .05, .06};
  out.shift_max = {.9, 0, 0, 0, 0, 0};
  out.windows = {64, 128, 256};
  out.inside = {{.5, .9, .5, .5, .5, .5}, {.6, .95, .9, .6, .6, .6}, {.7, 1, 1, .9, .7, .7}};
  return out;
}

std::vector<size_t> global_heads(const HeadMap& map) {
  std::vector<size_t> out;
  for (size_t i = 0; i < map.heads.size(); ++i) {
    if (map.heads[i] == HeadClass::kGlobal) {
      out.push_back(i);
      EXPECT_EQ(map.window[i], -1);
      EXPECT_EQ(map.sink[i], 0);
    }
  }
  return out;
}
using Heads = std::vector<size_t>;

TEST(HeadChoice, ScoresAreThoseOfTheMeasure) {
  const HeadProfile profile = profile_of({1, 2, 3, 4, 5, 6});
  EXPECT_EQ(head_scores(profile, "ablation"), profile.ablation);
  EXPECT_EQ(head_scores(profile, "edge-mean"), profile.edge_mean);
  EXPECT_EQ(head_scores(profile, "edge-max"), profile.edge_max);
  EXPECT_EQ(head_scores(profile, "shift"), profile.shift_max);
  EXPECT_EQ(head_scores(profile, "paper"), (Scores{.9, .2, .3, .4, .5, .6}));
}

TEST(HeadChoice, ProfilesAreAveraged) {
  HeadProfile longer = profile_of({3, 3, 3, 3, 3, 3}), shorter = profile_of({1, 2, 3, 4, 5, 6});
  shorter.tokens = 51;
  shorter.windows.pop_back(), shorter.inside.pop_back();
  const HeadProfile mean = mean_profile({longer, shorter});
  EXPECT_EQ(mean.ablation, (Scores{2, 2.5, 3, 3.5, 4, 4.5}));
  EXPECT_EQ(mean.windows, (std::vector<int>{64, 128}));
  EXPECT_EQ(mean.inside.size(), 2u);
  EXPECT_EQ(mean.tokens, 76);
  EXPECT_EQ(mean.layers, 2);
}

TEST(HeadChoice, StabilityIsTheMeanRankCorrelation) {
  const HeadProfile up = profile_of({1, 2, 3, 4, 5, 6}), same = profile_of({10, 20, 30, 40, 50, 600});
  const HeadProfile down = profile_of({6, 5, 4, 3, 2, 1});
  EXPECT_DOUBLE_EQ(score_stability({up, same}, "ablation"), 1);
  EXPECT_DOUBLE_EQ(score_stability({up, down}, "ablation"), -1);
  EXPECT_NEAR(score_stability({up, same, down}, "ablation"), -1.0 / 3, 1e-12);
  EXPECT_EQ(score_stability({up}, "ablation"), 0);
  EXPECT_EQ(rank_correlation({1, 1, 1}, {1, 2, 3}), 0);
}

TEST(HeadChoice, TheHighestScoresAreGlobal) {
  const HeadProfile profile = profile_of({1, 6, 2, 5, 3, 4});
  const auto chosen = [&](const HeadChoice& choice) {
    return global_heads(choose_head_map(profile, profile.ablation, choice));
  };
  EXPECT_EQ(chosen({.share = 0}), Heads{});
  EXPECT_EQ(chosen({.share = 0.5}), (Heads{1, 3, 5}));
  EXPECT_EQ(chosen({.share = 1}).size(), 6u);
  EXPECT_EQ(chosen({.loss = 6.5}), (Heads{1, 3, 5}));  // 1 + 2 + 3 are left
  EXPECT_EQ(chosen({.loss = 5.5}), (Heads{1, 3, 4, 5}));
}

TEST(HeadChoice, ALocalHeadHasTheShortestWindowThatHoldsTheMass) {
  const HeadProfile profile = profile_of({6, 5, 4, 3, 2, 1});
  const HeadMap map = choose_head_map(profile, profile.ablation, {.share = 0, .window_mass = 0.9});
  EXPECT_EQ(map.window, (std::vector<int32_t>{256, 64, 128, 256, 256, 256}));
  EXPECT_EQ(choose_head_map(profile, profile.ablation, {.share = 0}).window, std::vector<int32_t>(6, 64));
}

TEST(HeadChoice, ControlsHaveAsManyGlobalHeads) {
  const HeadProfile profile = profile_of({1, 6, 2, 5, 3, 4});
  const HeadMap map = choose_head_map(profile, profile.ablation, {.share = 0.5, .window = 100, .sink = 3});
  EXPECT_EQ(global_heads(control_of(map, "first")), (Heads{0, 1, 2}));
  EXPECT_EQ(global_heads(control_of(map, "last")), (Heads{3, 4, 5}));
  EXPECT_EQ(global_heads(control_of(map, "none")), Heads{});
  EXPECT_EQ(global_heads(control_of(map, "all")).size(), 6u);
  EXPECT_EQ(control_of(map, "first").window[5], 100);
  EXPECT_EQ(control_of(map, "first").sink[5], 3);
  const auto random = global_heads(control_of(map, "random", 1));
  EXPECT_EQ(random.size(), 3u);
  EXPECT_EQ(random, global_heads(control_of(map, "random", 1)));
  bool differs = false;
  for (uint64_t seed = 2; seed < 12; ++seed)
    differs = differs || global_heads(control_of(map, "random", seed)) != random;
  EXPECT_TRUE(differs) << "power";
}

}  // namespace
}  // namespace kvilt
