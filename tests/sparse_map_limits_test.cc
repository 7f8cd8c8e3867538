// Sparse maps (MInference's patterns, each KV head its own): a map that says the same for all heads is the policy
// without one, bit for bit; a mixed map is not. And what profiles of patterns say, against what requests measure.
#include <gtest/gtest.h>

#include <array>
#include <fstream>

#include "kvilt/sparse_profile.h"
#include "model/pattern_choice.h"
#include "probe_prompts.h"

namespace kvilt {
namespace {

using Is = HeadPattern::Is;

constexpr int kMapLayers = 6, kMapHeads = 2;  // of the probe model

const HeadPattern kFewLines{.is = Is::kLines, .columns = 60, .distances = 100};
const HeadPattern kFewBlocks{.is = Is::kBlocks, .blocks = 3};
const HeadPattern kFewNear{.is = Is::kAShape, .sink = 10, .window = 100};

SparseMap one_for_all(const HeadPattern& pattern) { return uniform_sparse_map(kMapLayers, kMapHeads, pattern); }

// Every head another of the three, from `first` on.
SparseMap mixed_map(std::array<HeadPattern, 3> patterns, size_t first = 0) {
  SparseMap out = one_for_all({});
  for (size_t i = 0; i < out.heads.size(); ++i) out.heads[i] = patterns[(first + i) % 3];
  return out;
}

class SparseMaps : public testing::TestWithParam<std::string> {
 protected:
  const std::vector<int32_t> prompt = tokens(GetParam() == "reference" ? 700 : 1300, 7);
  std::unique_ptr<Engine> engine(int chunk = 512) const {
    auto out = open_for_test({.model = kModel, .backend = GetParam(), .chunk_tokens = chunk});
    const auto add = [&](const std::string& name, const SparseMap& map) {
      EXPECT_TRUE(out->set_sparse_map(name, sparse_map_json(map)).ok());
    };
    add("lines", one_for_all(kFewLines)), add("blocks", one_for_all(kFewBlocks)), add("near", one_for_all(kFewNear));
    add("mixed", mixed_map({kFewLines, kFewBlocks, kFewNear}));
    add("turned", mixed_map({kFewLines, kFewBlocks, kFewNear}, 1));
    add("all",
        mixed_map({HeadPattern{.is = Is::kLines, .columns = 1300, .distances = 0},
                   HeadPattern{.is = Is::kBlocks, .blocks = 21}, HeadPattern{.is = Is::kAShape, .window = 1300}}));
    return out;
  }
};

TEST_P(SparseMaps, OnePatternForAllIsThePolicyWithoutAMap) {
  const auto e = engine();
  const std::pair<const char*, std::pair<const char*, Params>> list[] = {
      {"lines", {"minference", {{"columns", "60"}, {"distances", "100"}}}},
      {"blocks", {"minference", {{"pattern", "blocks"}, {"blocks", "3"}}}},
      {"near", {"ashape", {{"sink", "10"}, {"window", "100"}}}}};
  for (const std::string pooled : {"0", "16"}) {
    const auto with = [&](const std::string& map) {
      return ask_with(*e, prompt, "minference", {{"map", map}, {"pooled", pooled}, {"rows", "8"}});
    };
    const Outcome mixed = with("mixed");
    expect_differ(mixed, with("turned"));
    for (const auto& [map, same] : list) {
      SCOPED_TRACE(map + pooled);
      Params params = same.second;
      params["pooled"] = pooled;
      if (std::string(map) == "lines") params["rows"] = "8";
      const Outcome uniform = with(map), plain = ask_with(*e, prompt, same.first, params);
      expect_equal(uniform, plain);
      EXPECT_EQ(uniform.usage().attention_flops, plain.usage().attention_flops);
      expect_differ(uniform, mixed);
    }
  }
}

TEST_P(SparseMaps, PatternsThatShowAllAreDense) {
  const auto e = engine();
  const Outcome dense = ask_with(*e, prompt, "full");
  expect_equal(ask_with(*e, prompt, "minference", {{"map", "all"}}), dense);
  expect_differ(ask_with(*e, prompt, "minference", {{"map", "mixed"}}), dense);
}

TEST_P(SparseMaps, TheChunkChangesNothing) {
  const auto whole = engine(2048), parts = engine(200);
  for (const std::string pooled : {"0", "32"}) {
    const Params params{{"map", "mixed"}, {"pooled", pooled}};
    expect_equal(ask_with(*whole, prompt, "minference", params), ask_with(*parts, prompt, "minference", params));
  }
}

TEST_P(SparseMaps, TogetherIsAlone) {
  const auto e = engine();
  std::vector<Request> requests;
  for (uint32_t i = 0; const char* map : {"mixed", "turned", "blocks", "mixed", "near"}) {
    requests.push_back(unpublished(tokens(600 + 90 * static_cast<int>(i), 20 + i), "minference", {{"map", map}}, 4));
    ++i;
  }
  expect_batched_equals_alone(*e, requests);
}

// The next turn goes on from what the same map left, and from no other's.
TEST_P(SparseMaps, ADialogueIsOfItsMap) {
  const auto e = engine();
  const std::vector<int32_t> first(prompt.begin(), prompt.begin() + 512);
  Request request = request_of(first, "minference", 0);
  request.policy.params = {{"map", "mixed"}};
  ask_ok(*e, std::move(request));
  EXPECT_EQ(ask_with(*e, prompt, "minference", {{"map", "turned"}}).usage().prefix, 0);
  const Outcome next = ask_with(*e, prompt, "minference", {{"map", "mixed"}});
  EXPECT_EQ(next.usage().prefix, 512);
  expect_equal(next, ask_with(*engine(), prompt, "minference", {{"map", "mixed"}}));
  const Status other = e->set_sparse_map("mixed", sparse_map_json(one_for_all(kFewLines)));
  ASSERT_FALSE(other.ok()) << "what the name's dialogues left was computed under the first one";
  EXPECT_NE(other.error().message.find("another sparse map 'mixed'"), std::string::npos);
  EXPECT_TRUE(e->set_sparse_map("mixed", sparse_map_json(mixed_map({kFewLines, kFewBlocks, kFewNear}))).ok());
}

INSTANTIATE_TEST_SUITE_P(Backends, SparseMaps, testing::Values("reference", "auto"));

TEST(SparseMapFiles, MistakesAreNamed) {
  const auto e = open_for_test({.model = kModel});
  const auto why = [&](const Params& params) {
    const Status status = e->check_policy({"minference", params});
    return status.ok() ? std::string() : status.error().message;
  };
  EXPECT_EQ(why({}), "");
  EXPECT_NE(why({{"pattern", "map"}}).find("--sparse-map"), std::string::npos);
  EXPECT_NE(why({{"map", "mine"}}).find("no sparse map 'mine': start with --sparse-map"), std::string::npos);
  const Status refused = e->set_sparse_map("mine", sparse_map_json(uniform_sparse_map(kMapLayers + 1, kMapHeads, {})));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("6 layers and 2 KV heads"), std::string::npos) << refused.error().message;
  EXPECT_FALSE(e->set_sparse_map("mine", "{").ok());
  ASSERT_TRUE(e->set_sparse_map("mine", sparse_map_json(one_for_all(kFewBlocks))).ok());
  EXPECT_EQ(why({{"map", "mine"}, {"rows", "9"}, {"dense_layers", "1"}}), "");
  EXPECT_NE(why({{"map", "yours"}}).find("there are mine"), std::string::npos);
  EXPECT_NE(why({{"map", "mine"}, {"pattern", "blocks"}}).find("leave 'pattern' out"), std::string::npos);
  EXPECT_NE(why({{"map", "mine"}, {"columns", "9"}}).find("columns"), std::string::npos);
}

// --sparse-map FILE: requests without a pattern have it; those with one do not.
TEST(SparseMapFiles, ADefaultMapIsForRequestsThatSayNothing) {
  const std::string path = testing::TempDir() + "default_sparse_map.json";
  std::ofstream(path) << sparse_map_json(one_for_all(kFewBlocks));
  const std::vector<int32_t> prompt = tokens(900, 7);
  const auto with = open_for_test({.model = kModel, .sparse_maps = {path}}), without = open_for_test({.model = kModel});
  const Outcome blocks = ask_with(*without, prompt, "minference", {{"pattern", "blocks"}, {"blocks", "3"}});
  expect_equal(ask_with(*with, prompt, "minference"), blocks);
  expect_differ(ask_with(*without, prompt, "minference"), blocks);
  const Params lines{{"pattern", "lines"}, {"columns", "60"}, {"distances", "100"}};
  expect_equal(ask_with(*with, prompt, "minference", lines), ask_with(*without, prompt, "minference", lines));
  EXPECT_FALSE(open_engine({.model = kModel, .sparse_maps = {"tests/data/no_such_map.json"}}).ok());
  std::ofstream(path) << sparse_map_json(uniform_sparse_map(1, 1, {}));
  const auto refused = open_engine({.model = kModel, .sparse_maps = {path}});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("1 layers and 1 KV heads"), std::string::npos);
}

class PatternProfiles : public testing::Test {
 protected:
  std::unique_ptr<Engine> engine = open_for_test({.model = kModel});
  const std::vector<int32_t> prompt = tokens(1300, 7);
  SparseProfile profile(std::vector<HeadPattern> patterns) {
    SparseProfileOptions options;
    options.patterns = std::move(patterns);
    auto out = profile_patterns(*engine, prompt, options);
    EXPECT_TRUE(out.ok()) << out.error().message;
    return std::move(out).value();
  }
};

// More keys hold more, and cost more; all keys hold all. Nothing is left of it.
TEST_F(PatternProfiles, MoreKeysHoldMore) {
  const SparseProfile out = profile({{.is = Is::kAShape, .sink = 64, .window = 100},
                                     {.is = Is::kAShape, .sink = 64, .window = 500},
                                     {.is = Is::kAShape, .sink = 64, .window = 1300},
                                     {.is = Is::kBlocks, .blocks = 2},
                                     {.is = Is::kBlocks, .blocks = 8},
                                     {.is = Is::kBlocks, .blocks = 21},
                                     {.is = Is::kLines, .columns = 40, .distances = 100},
                                     {.is = Is::kLines, .columns = 200, .distances = 400},
                                     {.is = Is::kLines, .columns = 1300, .distances = 1300}});
  ASSERT_EQ(out.held.size(), static_cast<size_t>(kMapLayers * kMapHeads * 9));
  const size_t one_row = out.held.size() - kMapHeads * 9;  // the last layer
  EXPECT_EQ(out.rows.front(), 1300);
  EXPECT_EQ(out.rows.back(), 1);
  for (size_t i = one_row; i < out.held.size(); ++i) EXPECT_TRUE(out.held[i] > 0 && out.held[i] < 1 + 1e-6);
  for (size_t i = 0; i < one_row; i += 3) {
    EXPECT_LT(out.held[i], out.held[i + 1]);
    EXPECT_LT(out.held[i + 1], out.held[i + 2]);
    EXPECT_NEAR(out.held[i + 2], 1, 1e-4);
    EXPECT_LT(out.cost[i], out.cost[i + 1]);
    EXPECT_LT(out.cost[i + 1], out.cost[i + 2]);
    const bool lines = i % 9 == 6;
    EXPECT_NEAR(out.cost[i + 2], 1, lines ? 1 : 1e-9);
    EXPECT_EQ(out.cost[i + 2] > 1.01, lines) << "looking costs";
  }
  EXPECT_EQ(engine->stats().kv_pages_used, 0);
}

// A profile says what requests then measure, but for what they measure it on: every 32nd row, over hidden states that
// lower layers have changed (pattern_trials_test.cc has the exact figures).
TEST_F(PatternProfiles, RequestsHoldWhatTheProfileSays) {
  const SparseProfile out = profile(candidate_patterns(1300));
  double last = 0, measured = 0;
  for (const double share : {0.2, 0.5, 0.8}) {
    const SparseMap map = choose_sparse_map(out, share);
    const std::string name = std::to_string(share);
    ASSERT_TRUE(engine->set_sparse_map(name, sparse_map_json(map)).ok());
    Request request = unpublished(prompt, "minference", {{"map", name}});
    request.evaluation.held_mass = true;
    const PromptUsage usage = ask_ok(*engine, request).usage();
    const double dense = ask_with(*engine, prompt, "full").usage().attention_flops;
    const HeldAt held = held_at(out, map);
    EXPECT_NEAR(usage.held_mass, held.held, 0.1);
    EXPECT_NEAR(usage.attention_flops / dense, held.cost, 0.05);
    EXPECT_GT(held.held, last + 0.02) << "power";
    EXPECT_GT(usage.held_mass, measured + 0.02) << "power";
    last = held.held, measured = usage.held_mass;
    for (const Is is : {Is::kAShape, Is::kLines, Is::kBlocks}) {
      const HeldAt alone = held_at(out, choose_sparse_map(out, share, is));
      EXPECT_TRUE(alone.cost > share || held.held >= alone.held);
    }
  }
}

TEST_F(PatternProfiles, MistakesAreNamed) {
  SparseProfileOptions options;
  EXPECT_EQ(profile_patterns(*engine, prompt, options).error().code, Code::kInvalidArgument) << "nothing to try";
  options.patterns = {{.is = Is::kBlocks, .blocks = 0}};
  EXPECT_EQ(profile_patterns(*engine, prompt, options).error().code, Code::kInvalidArgument);
  options.patterns = {kFewBlocks};
  EXPECT_EQ(profile_patterns(*engine, {5}, options).error().code, Code::kInvalidArgument);
  EXPECT_EQ(profile_patterns(*engine, {5, 1 << 30}, options).error().code, Code::kInvalidArgument);
  EXPECT_EQ(profile_patterns(*engine, tokens(1 << 18, 1), options).error().code, Code::kExhausted);
  EXPECT_TRUE(profile_patterns(*engine, tokens(20, 1), options).ok()) << "power";
}

}  // namespace
}  // namespace kvilt
