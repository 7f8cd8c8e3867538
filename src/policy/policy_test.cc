// Policies as plans: golden pictures, parameters, choices from hand-made probes; mend and auto: mend_test.cc. With an
// engine: tests/limits_test.cc.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "policy/plans_for_test.h"

namespace kvilt {
namespace {

TEST(Policy, Pictures) {
  const ModelConfig config = config_of(2);
  EXPECT_EQ(picture(checked_plan(*policy("full"), {20, 0, {}}, config), 0, 1),
            "  1   ####################\n  0   ####################\n");
  EXPECT_EQ(picture(checked_plan(*policy("prefix"), {20, 4, {}}, config), 0, 1),
            "  1   ....################\n  0   ....################\n");
  EXPECT_EQ(picture(checked_plan(*policy("naive"), layout(), config), 0, 1),
            "  1   ................####\n  0   ................####\n");
}

TEST(Policy, NaiveComputesTheLastPositionOnAFullHit) {
  const PromptLayout hit{20, 4, {{4, 20}}};
  EXPECT_EQ(checked_plan(*policy("naive"), hit, config_of(2)).stages[0].sets[0], (Runs{{19, 20}}));
}

// Each layer has one anchor; those below compute it too. Rows see the prefix, what is computed, and their own piece.
TEST(RelaxKV, LayersBelowAnAnchorComputeItToo) {
  const ModelConfig config = config_of(3);
  const auto by_layer = [] {
    std::vector<Probe> out;
    for (const int pos : {5, 8, 12}) out.push_back(scores({{pos, 9}, {6, 1}})[0]);
    return out;
  };
  const auto refined = [&](const std::map<std::string, std::string>& params) {
    const auto relaxkv = policy("relaxkv", params);
    Plan plan = checked_plan(*relaxkv, layout(), config);
    EXPECT_EQ(plan.stages[0].probes.size(), 3u);
    relaxkv->refine(layout(), config, 0, by_layer(), plan);
    EXPECT_TRUE(validate(plan, config, {{0, 16}}).ok());
    return plan;
  };
  const Plan plan = refined({{"r", "0.17"}});  // 2 of 12, as a mean over the layers: 3 + 2 + 1
  EXPECT_EQ(picture(plan, 1, 1),
            "  2   ............#...####\n"
            "  1   ........#...#...####\n"
            "  0   .....#..#...#...####\n");
  ASSERT_EQ(plan.stages[1].sights.size(), 2u);
  EXPECT_EQ(plan.stages[1].sights[0].rows, (Runs{{5, 6}, {8, 9}}));
  EXPECT_EQ(plan.stages[1].sights[0].keys, (Runs{{0, 10}, {12, 13}, {16, 20}}));
  const Plan strict = refined({{"r", "0.17"}, {"reads", "anchors"}});
  ASSERT_EQ(strict.stages[1].sights.size(), 1u);
  EXPECT_EQ(strict.stages[1].sights[0].keys, (Runs{{0, 4}, {5, 6}, {8, 9}, {12, 13}, {16, 20}}));
  EXPECT_TRUE(refined({{"r", "0.09"}}).stages[1].sights.empty()) << "power: one token a layer is more than this";
}

// Against the definition: k anchors a layer, each layer computes those of the deeper ones too, one k more is too many.
TEST(RelaxKV, TakesAsManyAnchorsAsTheBudgetAllows) {
  constexpr int kLayers = 5;
  const ModelConfig config = config_of(kLayers);
  const PromptLayout prompt{220, 10, {{10, 90}, {100, 200}}};
  std::mt19937_64 rng(7);
  int capped = 0;
  for (const char* r : {"0", "0.03", "0.2", "0.5", "0.97", "1"}) {
    for (const int distinct : {3, 1000000}) {  // with ties, and without
      std::vector<Probe> probes(kLayers);
      for (Probe& probe : probes) {
        for (int i = 0; i < 220; ++i) probe.score.push_back(static_cast<double>(rng() % distinct));
      }
      probes[2].score[20] = std::nan("");
      const auto relaxkv = policy("relaxkv", {{"r", r}});
      Plan plan = relaxkv->plan(prompt, config);
      relaxkv->refine(prompt, config, 0, probes, plan);
      const auto sets = [&](int64_t k) {
        std::vector<Runs> out(kLayers);
        for (int l = 0; l < kLayers; ++l) {
          for (int m = l; m < kLayers; ++m) out[l] = unite(out[l], top_positions(probes[m].score, prompt.reused(), k));
        }
        return out;
      };
      const auto total = [](const std::vector<Runs>& of) {
        int64_t sum = 0;
        for (const Runs& set : of) sum += count(set);
        return sum;
      };
      const auto budget = static_cast<int64_t>(std::floor(std::stod(r) * 180 + 1e-9)) * kLayers;
      int64_t k = 0;
      while (k < 180 && total(sets(k + 1)) <= budget) ++k;
      capped += k < 180 && k > 0;
      for (int l = 0; l < kLayers; ++l)
        EXPECT_EQ(intersect(plan.stages[1].write_at(l), prompt.reused()), sets(k)[l]) << r << ' ' << distinct;
    }
  }
  EXPECT_GT(capped, 4) << "power";
}

TEST(SparseX, CatchupRestartsWithTheChosenRows) {
  const auto sparsex = policy("sparsex", {{"k", "0.25"}, {"l_star", "3"}, {"b", "1"}});
  const ModelConfig config = config_of(4);
  Plan plan = checked_plan(*sparsex, layout(), config);
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(picture(plan, 0, 1),
            "  2 | ................####\n  1   ................####\n  0   ................####\n");
  // 17 is fresh and 2 is prefix: neither may be one of the 3 = 25 % of 12 reused ones. 6 and 12 tie for the last place.
  sparsex->refine(layout(), config, 0, scores({{17, 9}, {2, 9}, {8, 5}, {5, 4}, {12, 3}, {6, 3}}), plan);
  EXPECT_EQ(plan.stages[1].sets[0], (Runs{{5, 7}, {8, 9}, {15, 20}}));
  EXPECT_TRUE(validate(plan, config, {{0, 16}}).ok());
}

TEST(SparseX, Phase1AllCutsOneStage) {
  const auto sparsex = policy("sparsex", {{"k", "0.1"}, {"l_star", "2"}, {"b", "0"}, {"phase1", "all"}});
  const ModelConfig config = config_of(3);
  Plan plan = checked_plan(*sparsex, layout(), config);
  sparsex->refine(layout(), config, 0, scores({{11, 1}, {9, 0.5}}), plan);
  EXPECT_EQ(picture(plan, 0, 1),
            "  2   .........#.#....####\n"
            "  1 | ....################\n"
            "  0   ....################\n");
}

TEST(SparseX, WithoutHybridProbesLayerZeroOnly) {
  const auto sparsex = policy("sparsex", {{"l_star", "0"}, {"phase1", "all"}});
  const Plan plan = checked_plan(*sparsex, layout(), config_of(3));
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[0].layer_end, 0);
  EXPECT_EQ(plan.stages[0].cuts, std::vector<int>{0});
}

TEST(SparseX, AFullHitProbesWithTheTail) {
  const auto sparsex = policy("sparsex", {{"k", "0"}, {"b", "0"}, {"tail", "3"}});
  const PromptLayout hit{20, 4, {{4, 10}, {10, 20}}};
  Plan plan = checked_plan(*sparsex, hit, config_of(8));
  EXPECT_EQ(plan.stages[0].sets[0], (Runs{{17, 20}}));
  sparsex->refine(hit, config_of(8), 0, scores({}), plan);
  EXPECT_EQ(plan.stages[1].sets[0], (Runs{{17, 20}}));
}

TEST(SparseX, EverythingChosenIsFullAndNothingReusedIsPrefix) {
  const auto sparsex = policy("sparsex", {{"k", "1"}});
  Plan plan = checked_plan(*sparsex, layout(), config_of(8));
  sparsex->refine(layout(), config_of(8), 0, scores({}), plan);
  EXPECT_EQ(plan.stages[1].sets[0], (Runs{{4, 20}}));
  EXPECT_EQ(checked_plan(*sparsex, {20, 4, {}}, config_of(8)).stages.size(), 1u);
}

TEST(SparseX, MeanUndoesTheAdvantageOfEarlyKeys) {
  // Every row gives the same weight to each key that it sees: with the sum early keys win, with the mean all tie.
  PromptLayout two{8, 0, {{0, 2}, {4, 6}}};  // fresh: 2-3 and 6-7
  Probe probe;
  probe.score = {4, 4, 3, 2, 2, 2, 1, 1};
  const auto chosen = [&](const std::string& reduce) {
    const auto sparsex = policy("sparsex", {{"k", "0.5"}, {"b", "0"}, {"l_star", "2"}, {"reduce", reduce}});
    Plan plan = sparsex->plan(two, config_of(2));
    probe.score[4] += 0.1;
    sparsex->refine(two, config_of(2), 0, {&probe, 1}, plan);
    probe.score[4] -= 0.1;
    return plan.stages[1].sets[0];
  };
  EXPECT_EQ(chosen("sum"), (Runs{{0, 4}, {6, 8}}));
  EXPECT_EQ(chosen("mean"), (Runs{{0, 1}, {2, 5}, {6, 8}}));
}

TEST(Layout, TheSuffixIsTheQuestion) {
  PromptLayout unmarked = layout();
  EXPECT_EQ(unmarked.suffix(64), (kvilt::Run{16, 20}));  // the last fresh run
  const PromptLayout hit{20, 4, {{4, 10}, {10, 20}}};
  EXPECT_EQ(hit.suffix(3), (kvilt::Run{17, 20}));
  EXPECT_EQ(hit.suffix(64), (kvilt::Run{4, 20}));  // never into the exact prefix
  PromptLayout marked = hit;
  marked.question = 12;  // asked before in the same words: a piece, but still the question
  EXPECT_EQ(marked.suffix(3), (kvilt::Run{12, 20}));
  marked.question = 20;
  EXPECT_EQ(marked.suffix(3), (kvilt::Run{17, 20}));
  EXPECT_EQ((PromptLayout{1000, 0, {{0, 100}}}.suffix(64)), (kvilt::Run{744, 1000}));  // a long fresh end
}

TEST(Epic, TheFirstTokensOfEveryPiece) {
  EXPECT_EQ(checked_plan(*policy("epic", {{"k", "2"}}), layout(), config_of(2)).stages[0].sets[0],
            (Runs{{4, 6}, {10, 12}, {16, 20}}));
}

// A question that is known as a piece is computed whole, whatever its length; what lies in the prefix is not.
TEST(Epic, TheQuestionIsComputedWhereItIsKnown) {
  const auto computed = [](PromptLayout layout) {
    return checked_plan(*policy("epic", {{"k", "2"}}), layout, config_of(2)).stages[0].sets[0];
  };
  PromptLayout known{420, 4, {{4, 10}, {10, 120}, {120, 420}}};
  EXPECT_EQ(computed(known), (Runs{{4, 6}, {10, 12}, {120, 122}, {419, 420}})) << "nobody says where it is";
  known.question = 110;
  EXPECT_EQ(computed(known), (Runs{{4, 6}, {10, 12}, {110, 420}}));
  PromptLayout inside{420, 200, {{200, 420}}};
  inside.question = 110;
  EXPECT_EQ(computed(inside), (Runs{{200, 420}}));
  inside.question = 420;
  EXPECT_EQ(computed(inside), (Runs{{200, 202}, {419, 420}})) << "the last mark ends the prompt";
}

TEST(CacheBlend, TheMostChangedGoOnAfterTheCheckLayer) {
  const auto blend = policy("cacheblend", {{"r", "0.25"}});
  Plan plan = checked_plan(*blend, layout(), config_of(4));
  blend->refine(layout(), config_of(4), 0, scores({{17, 9}, {8, 5}, {5, 4}, {12, 3}}), plan);
  EXPECT_EQ(picture(plan, 0, 1),
            "  3   .....#..#...#...####\n"
            "  2   .....#..#...#...####\n"
            "  1 | ....################\n"
            "  0   ....################\n");
}

// Half of a piece's probes by K, the rest of them by V among those that are left.
TEST(AgentKVShift, TheMostMovedOfKeysAndOfValuesShowTheOffset) {
  const Probe keys = scores({{8, 9}, {5, 4}, {12, 0.25}})[0], values = scores({{8, 9}, {9, 5}, {14, 3}, {10, 0.04}})[0];
  const auto shift = policy("agentkvshift", {{"r", "0.33"}});
  Plan plan = checked_plan(*shift, layout(), config_of(4));
  shift->refine(layout(), config_of(4), 0, std::vector<Probe>{keys, values}, plan);
  EXPECT_EQ(picture(plan, 0, 1),
            "  3   ........##..#.#.####\n"
            "  2   ........##..#.#.####\n"
            "  1 | ....################\n"
            "  0   ....################\n");
}

TEST(AgentKVShift, ProbesMayBeOfAllPiecesTogether) {
  const auto shift = policy("agentkvshift", {{"r", "0.34"}, {"probes", "prompt"}, {"weight", "one"}});
  Plan plan = checked_plan(*shift, layout(), config_of(4));
  const Probe keys = scores({{8, 9}, {5, 4}, {12, 3}})[0], values = scores({{8, 9}, {14, 5}, {10, 3}})[0];
  shift->refine(layout(), config_of(4), 0, std::vector<Probe>{keys, values}, plan);
  EXPECT_EQ(picture(plan, 0, 1),
            "  3   .....#..#.#...#.####\n"
            "  2   .....#..#.#...#.####\n"
            "  1 | ....################\n"
            "  0   ....################\n");
  const Carry& carry = *plan.stages[0].carry;
  EXPECT_TRUE(carry.share_k.empty() && carry.share_v.empty());
  EXPECT_EQ(carry.layer_begin, 2);
  ASSERT_EQ(carry.groups.size(), 2u);
  CarryWeights weights = carry_positions(carry.groups[1], plan.stages[0].sets[1]);
  weigh(carry, carry.groups[1], {}, weights);
  EXPECT_EQ(weights.sources, (std::vector<int32_t>{10, 14}));
  for (const float w : weights.w) EXPECT_NEAR(w, 0.5, 1e-6);  // the plain mean
}

// A token takes of the offset as much as it moved itself, at most all: K and V each by their own distance.
TEST(AgentKVShift, ATokenIsWeighedByItsOwnDivergence) {
  const Probe keys = scores({{8, 9}, {5, 0.25}})[0], values = scores({{8, 0.04}, {9, 1}, {14, NAN}})[0];
  for (const std::string weight : {"divergence", "one"}) {
    const auto shift = policy("agentkvshift", {{"r", "0.2"}, {"weight", weight}});
    Plan plan = checked_plan(*shift, layout(), config_of(4));
    shift->refine(layout(), config_of(4), 0, std::vector<Probe>{keys, values}, plan);
    ASSERT_TRUE(validate(plan, config_of(4), {{0, 16}}).ok());
    const Carry& carry = *plan.stages[0].carry;
    if (weight == "one") {
      EXPECT_TRUE(carry.share_k.empty() && carry.share_v.empty()) << "power: the other one has them";
      continue;
    }
    ASSERT_EQ(carry.share_k.size(), keys.score.size());
    EXPECT_FLOAT_EQ(carry.share_k[8], 1);  // at most
    EXPECT_FLOAT_EQ(carry.share_k[5], 0.5f);
    EXPECT_FLOAT_EQ(carry.share_k[9], 0);
    EXPECT_FLOAT_EQ(carry.share_v[8], 0.2f);
    EXPECT_FLOAT_EQ(carry.share_v[9], 1);
    EXPECT_FLOAT_EQ(carry.share_v[14], 1) << "what is no number is far";
  }
}

TEST(Policy, ParametersAreChecked) {
  const auto message = [](const std::string& name, std::map<std::string, std::string> params) {
    const auto made = make_policy(name, params);
    return made.ok() ? std::string() : made.error().message;
  };
  EXPECT_NE(message("nope", {}).find("full, prefix, naive, sparsex"), std::string::npos);
  EXPECT_NE(message("sparsex", {{"k", "2"}}).find("from 0 to 1"), std::string::npos);
  EXPECT_NE(message("sparsex", {{"k", "abc"}}).find("'abc'"), std::string::npos);
  EXPECT_NE(message("sparsex", {{"l_star", "1.5"}}).find("whole number"), std::string::npos);
  EXPECT_NE(message("sparsex", {{"phase1", "some"}}).find("all, catchup"), std::string::npos);
  EXPECT_NE(message("sparsex", {{"kk", "0.1"}}).find("no parameter 'kk'"), std::string::npos);
  EXPECT_NE(message("auto", {{"quality", "best"}}).find("draft, balanced, exact"), std::string::npos);
  EXPECT_NE(message("full", {{"k", "0.1"}}).find("takes none"), std::string::npos);
  EXPECT_EQ(message("sparsex", {{"budget", "0.3"}}), "");
}

// Each parameter is taken where it acts; elsewhere the message says beside what it does not.
TEST(Policy, ParametersThatDoNothingAreRefused) {
  const auto refused = [](const std::string& name, std::map<std::string, std::string> params, const std::string& why) {
    const auto made = make_policy(name, params);
    ASSERT_FALSE(made.ok()) << name << ' ' << why;
    EXPECT_NE(made.error().message.find(why), std::string::npos) << made.error().message;
  };
  const auto taken = [](const std::string& name, const std::map<std::string, std::string>& params) {
    const auto made = make_policy(name, params);
    EXPECT_TRUE(made.ok()) << made.error().message;
  };
  for (const auto& [param, value] :
       {std::pair("r", "0.2"), {"hop", "0.1"}, {"alike", "0.5"}, {"text", "all"}, {"ahead", "4"}}) {
    refused("auto", {{"quality", "exact"}, {param, value}},
            fmt::format("no parameter '{}' beside quality=exact", param));
    taken("auto", {{"quality", "draft"}, {param, value}});
  }
  for (const char* param : {"alpha", "budget", "threshold", "rows"})
    refused("loopserve", {{"rule", "random"}, {param, "1"}}, fmt::format("'{}' beside rule=random", param));
  refused("loopserve", {{"rule", "random"}, {"sample", "last"}}, "'sample' beside");
  refused("loopserve", {{"rule", "threshold"}, {"alpha", "0.9"}}, "'alpha' beside rule=threshold");
  for (const char* rule : {"shortest", "printed", "coverage"}) {
    refused("loopserve", {{"rule", rule}, {"threshold", "2"}}, "'threshold' beside");
    taken("loopserve", {{"rule", rule}, {"alpha", "0.9"}, {"rows", "8"}, {"sample", "last"}});
  }
  taken("loopserve", {{"rule", "threshold"}, {"threshold", "2"}, {"rows", "8"}, {"sample", "last"}});
  taken("loopserve", {{"rule", "random"}, {"share", "0.3"}, {"dense_last", "9"}});
  for (const auto& [param, value] : {std::pair("ahead", "4"), {"value_norm", "no"}}) {
    refused("mend", {{"anchors", "1"}, {param, value}}, fmt::format("'{}' beside anchors=1", param));
    taken("mend", {{"anchors", "0.9"}, {param, value}});
  }
  refused("samkv", {{"keep", "0.5"}, {"literal", "yes"}}, "'literal' beside keep=0.5");
  taken("samkv", {{"literal", "yes"}});
}

TEST(SparsePrefill, MethodsAreRules) {
  const auto rule = [](const std::string& name, std::map<std::string, std::string> params) {
    return *checked_plan(*policy(name, std::move(params)), {20, 4, {}}, config_of(2)).sparse;
  };
  const SparseRule blocks = rule("minference", {{"pattern", "blocks"}, {"blocks", "7"}});
  EXPECT_EQ(blocks.by, SparseRule::By::kBlocks);
  EXPECT_EQ(blocks.blocks.most, 7);
  EXPECT_FALSE(blocks.blocks.first);
  EXPECT_EQ(rule("minference", {}).by, SparseRule::By::kSample);
  const SparseRule flex = rule("flexprefill", {{"gamma", "0.8"}, {"tau", "0.2"}});
  EXPECT_EQ(flex.by, SparseRule::By::kSample);
  EXPECT_EQ(flex.lines.mass, 0.8);
  EXPECT_EQ(flex.blocks.mass, 0.8);
  EXPECT_EQ(flex.tau, 0.2);
  EXPECT_TRUE(flex.blocks.together && flex.sample_last);
  EXPECT_EQ(flex.blocks.least, 0);
  EXPECT_EQ(rule("flexprefill", {{"least", "1000"}}).blocks.least, 16);
  EXPECT_EQ(rule("flexprefill", {{"least", "1000"}}).lines.least, 1000);
  const SparseRule xattention = rule("xattention", {{"stride", "16"}, {"budget", "0.8"}});
  EXPECT_EQ(xattention.blocks.score, BlockScore::kAntidiagonals);
  EXPECT_EQ(xattention.blocks.stride, 16);
  EXPECT_EQ(xattention.blocks.mass, 0.8);
  const auto message = [](const std::string& name, std::map<std::string, std::string> params) {
    const auto made = make_policy(name, params);
    return made.ok() ? std::string() : made.error().message;
  };
  EXPECT_NE(message("xattention", {{"stride", "12"}}).find("1, 2, 4, 8"), std::string::npos);
  EXPECT_NE(message("minference", {{"pattern", "stripes"}}).find("lines, blocks"), std::string::npos);
  EXPECT_NE(message("minference", {{"pattern", "blocks"}, {"columns", "9"}}).find("no parameter 'columns'"),
            std::string::npos);
  EXPECT_NE(message("minference", {{"blocks", "9"}}).find("no parameter 'blocks'"), std::string::npos) << "of lines";
}

TEST(SparsePrefill, AMapGivesEachHeadItsRule) {
  PolicyFiles files;
  SparseMap map = uniform_sparse_map(2, 1, {.is = HeadPattern::Is::kBlocks, .blocks = 9});
  map.heads[1] = {.is = HeadPattern::Is::kAShape, .sink = 3, .window = 5};
  files.sparse_maps["mine"] = std::make_shared<const SparseMap>(map);
  const auto made = make_policy("minference", {{"map", "mine"}, {"rows", "12"}}, files);
  ASSERT_TRUE(made.ok()) << made.error().message;
  ModelConfig config = config_of(2);
  config.G = 1;
  Plan plan = (*made)->plan({20, 4, {}}, config);
  EXPECT_TRUE(validate(plan, config, {{0, 4}}).ok());
  const SparseRule& rule = *plan.sparse;
  EXPECT_EQ(rule.of(0).by, KeyPattern::By::kBlocks);
  EXPECT_EQ(rule.of(0).blocks.most, 9);
  EXPECT_EQ(rule.of(1).by, KeyPattern::By::kFixed);
  EXPECT_EQ(rule.of(1).sink + 10 * rule.of(1).window, 53);
  EXPECT_EQ(rule.sampled, 12);
  config.L = 3;
  plan = (*made)->plan({20, 4, {}}, config);
  EXPECT_FALSE(validate(plan, config, {{0, 4}}).ok()) << "of another model's shape";
}

TEST(Policy, YesAndNoMayBeJsonsTrueAndFalse) {
  for (const std::string word : {"yes", "no", "true", "false"}) {
    for (const bool fallback : {false, true}) {
      PolicyParams params({{"gain", word}});
      EXPECT_EQ(params.flag("gain", fallback), word == "yes" || word == "true") << word;
      EXPECT_TRUE(params.finish("mend").ok());
    }
  }
  PolicyParams none({});
  EXPECT_TRUE(none.flag("gain", true));
  EXPECT_FALSE(none.flag("gain", false));
  const auto wrong = make_policy("mend", {{"gain", "1"}});
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find("yes, no, true, false"), std::string::npos) << wrong.error().message;
}

}  // namespace
}  // namespace kvilt
