// Cross-query reuse as plans: pictures, windows, and that every plan of it is valid.
#include <gtest/gtest.h>

#include <random>

#include "policy/plans_for_test.h"

namespace kvilt {
namespace {

std::unique_ptr<ReusePolicy> crossquery(std::map<std::string, std::string> params) {
  return policy("crossquery", std::move(params));
}

// 0-3 exact prefix, 4-9 and 10-15 two pieces, 16-19 fresh; 5-12 have a state at layer 4.
PromptLayout two_pieces() {
  PromptLayout layout = kvilt::layout();
  layout.annexes = {{{AnnexOf::kHiddenF32, 4}, {{5, 13}}}};
  return layout;
}

std::string picture_of(std::map<std::string, std::string> params, const PromptLayout& layout, int L) {
  const Plan plan = crossquery(std::move(params))->plan(layout, config_of(L));
  const auto valid = validate(plan, config_of(L), unite(Runs{{0, layout.prefix}}, layout.reused()));
  EXPECT_TRUE(valid.ok()) << (valid.ok() ? "" : valid.error().message);
  return picture(plan, 0, 1);
}

TEST(CrossQuery, AHasAHaloAtBothEndsOfEachPiece) {
  EXPECT_EQ(picture_of({{"halo", "2"}}, two_pieces(), 1), "  0   ....##..####..######\n");
  EXPECT_EQ(picture_of({{"halo", "3"}}, two_pieces(), 1), "  0   ....################\n");
  EXPECT_EQ(picture_of({{"h", "0"}}, two_pieces(), 1), "  0   ................####\n");
}

TEST(CrossQuery, BEntersWhereThereIsAState) {
  EXPECT_EQ(picture_of({{"regime", "b"}, {"l_cut", "4"}}, two_pieces(), 6),
            "  5   ....################\n"
            "  4   ....################\n"
            "  3   ....#........#######\n"
            "  2   ....#........#######\n"
            "  1   ....#........#######\n"
            "  0   ....#........#######\n");
  const Plan plan = crossquery({{"regime", "b"}, {"l_cut", "4"}})->plan(two_pieces(), config_of(6));
  EXPECT_EQ(plan.keep, (std::vector<AnnexKind>{{AnnexOf::kHiddenF32, 4}}));
  EXPECT_EQ(plan.stages[0].entries[0].rows, (Runs{{5, 13}}));
}

TEST(CrossQuery, ContextIsWhatLayersReachBack) {
  const auto wanted = [](std::map<std::string, std::string> params) {
    return crossquery(std::move(params))->wants_shared_context();
  };
  const auto of_b = [&](const char* l_cut) {
    return wanted({{"regime", "b"}, {"l_cut", l_cut}, {"accept", "context"}});
  };
  EXPECT_EQ(wanted({}), 0);
  EXPECT_EQ(of_b("4"), 128);
  EXPECT_EQ(of_b("8"), 512);
  EXPECT_EQ(of_b("16"), PromptLayout::kWholeContext);
  EXPECT_EQ(wanted({{"accept", "context"}}), PromptLayout::kWholeContext);
  EXPECT_EQ(wanted({{"context", "30"}}), 30);
  PromptLayout layout = two_pieces();
  layout.shared_context = {PromptLayout::kWholeContext, 1};
  EXPECT_EQ(picture_of({{"halo", "0"}, {"context", "4"}}, layout, 1), "  0   ..........###...####\n");
}

TEST(CrossQuery, EveryPlanIsValid) {
  std::mt19937 rng(5);
  const auto below = [&](int n) { return static_cast<int32_t>(rng() % static_cast<unsigned>(n)); };
  int entering = 0;
  for (int round = 0; round < 3000; ++round) {
    const int T = 2 + below(60), L = 1 + below(12);
    PromptLayout layout{T, below(T / 2), {}};
    for (int32_t at = layout.prefix; at < T; at += 1 + below(9)) {
      const int32_t end = std::min(T, at + 1 + below(20));
      if (below(3) > 0) layout.pieces.push_back({at, end}), layout.shared_context.push_back(below(30));
      at = end;
    }
    std::map<std::string, std::string> params;
    if (below(2) > 0) {
      const int l_cut = 4 * below(4);
      params = {{"regime", "b"}, {"l_cut", std::to_string(l_cut)}};
      const Runs some = intersect(layout.reused(), normalize(Runs{{below(T), below(T)}, {below(T), below(T)}}));
      layout.annexes = {{{AnnexOf::kHiddenF32, l_cut}, some}};
    } else {
      params = {{"halo", std::to_string(below(12))}};
    }
    if (below(2) > 0) params["context"] = std::to_string(1 + below(20));
    const Plan plan = crossquery(params)->plan(layout, config_of(L));
    const auto valid = validate(plan, config_of(L), unite(Runs{{0, layout.prefix}}, layout.reused()));
    ASSERT_TRUE(valid.ok()) << valid.error().message;
    entering += plan.stages[0].entries.empty() ? 0 : 1;
  }
  EXPECT_GT(entering, 100);
}

}  // namespace
}  // namespace kvilt
