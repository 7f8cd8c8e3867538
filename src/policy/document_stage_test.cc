// Where documents end and a question begins, in prompts that are not plainly one after the other.
#include "policy/document_stage.h"

#include <gtest/gtest.h>

#include <limits>

#include "policy/samkv_choice.h"

namespace kvilt {
namespace {

ModelConfig config() {
  ModelConfig c;
  c.L = 3;
  c.H = 2;
  c.G = 1;
  c.E = 2;
  return c;
}

using Params = std::map<std::string, std::string>;

// Of both methods that read blocks, by `samkv`.
Plan plan_of(const PromptLayout& layout, bool samkv) {
  Params params{{"block", "8"}};
  if (samkv) {
    params["recompute"] = "none";
  } else {
    params.insert({{"init", "0"}, {"local", "20"}, {"topk", "1"}, {"angle", "single"}});
  }
  const auto policy = std::move(make_policy(samkv ? "samkv" : "multi-infllm", params).value());
  Plan plan = policy->plan(layout, config());
  const auto sound = validate(plan, config(), unite(Runs{{0, layout.prefix}}, layout.reused()));
  EXPECT_TRUE(sound.ok()) << (sound.ok() ? "" : sound.error().message);
  return plan;
}

void expect_same_stages(const Plan& a, const Plan& b) {
  ASSERT_EQ(a.stages.size(), b.stages.size());
  for (size_t s = 0; s < a.stages.size(); ++s) {
    EXPECT_EQ(a.stages[s].unseen, b.stages[s].unseen) << s;
    EXPECT_EQ(a.stages[s].sets, b.stages[s].sets) << s;
    ASSERT_EQ(a.stages[s].far.has_value(), b.stages[s].far.has_value());
    if (a.stages[s].far) {
      EXPECT_EQ(a.stages[s].far->rows, b.stages[s].far->rows);
      EXPECT_EQ(a.stages[s].far->before, b.stages[s].far->before);
    }
  }
}

// A prefix of 3, documents of 40 and 32 tokens, a question of 5.
PromptLayout asked(std::vector<Run> pieces) {
  PromptLayout layout;
  layout.prompt_len = 80;
  layout.prefix = 3;
  layout.pieces = std::move(pieces);
  layout.question = 75;
  return layout;
}

// A document that was cached in front of the same question is found with it, as one piece.
TEST(DocumentStage, ADocumentEndsWhereTheQuestionBegins) {
  for (const bool samkv : {true, false}) {
    const Plan plan = plan_of(asked({{3, 43}, {43, 75}}), samkv);
    expect_same_stages(plan_of(asked({{3, 43}, {43, 80}}), samkv), plan);
    expect_same_stages(plan_of(asked({{3, 43}, {43, 78}}), samkv), plan);
    EXPECT_EQ(plan.stages.back().sets[0], (Runs{{75, 80}}));
    EXPECT_NE(plan_of(asked({{3, 43}}), samkv).stages.size(), plan.stages.size()) << "power: two documents are read";
  }
}

TEST(DocumentStage, WhatIsComputedAgainReachesTheQuestion) {
  const auto policy = std::move(make_policy("samkv", {{"block", "8"}, {"keep", "1"}, {"recompute", "all"}}).value());
  const Plan plan = policy->plan(asked({{3, 43}, {43, 78}}), config());
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[0].sets[0], (Runs{{3, 75}}));
  EXPECT_EQ(plan.stages[1].sets[0], (Runs{{75, 80}}));
}

// A prompt that ends in a document has no question: its last position stands for one, also when it starts again in the
// middle of its answer, whatever is known of that.
TEST(DocumentStage, APromptThatStartsAgainIsReadAsBefore) {
  PromptLayout first = asked({{3, 43}, {43, 75}});
  first.prompt_len = 75;
  first.question = -1;
  for (const bool samkv : {true, false}) {
    const Plan before = plan_of(first, samkv);
    EXPECT_EQ(before.stages.back().sets[0], (Runs{{74, 75}}));
    for (const int32_t known : {75, 77}) {
      PromptLayout again = first;
      again.prompt_len = 83;
      again.answer = 75;
      again.pieces.back().end = known;
      Plan after = plan_of(again, samkv);
      EXPECT_EQ(after.stages.back().sets[0], (Runs{{74, 83}})) << "what its rows wrote is written again";
      EXPECT_EQ(after.stages.back().unseen, before.stages.back().unseen);
      after.stages.back().sets = before.stages.back().sets;
      if (!samkv) {
        ASSERT_TRUE(after.stages.back().far && before.stages.back().far);
        EXPECT_EQ(after.stages.back().far->rows, before.stages.back().far->rows);
        EXPECT_EQ(after.stages.back().far->before, before.stages.back().far->before);
      }
    }
  }
}

// A model whose numbers are none is refused at its logits; until then a choice is some choice.
TEST(DocumentStage, NumbersThatAreNoneGiveSomeChoice) {
  constexpr BlockCut kCut{.block = 4, .initial = 1, .local = 2};
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const bool shared : {true, false}) {
      for (const bool by_range : {true, false}) {
        DocumentStats stats{.tokens = 40, .layers = {}};
        for (int l = 0; l < 2; ++l) {
          LayerStats layer{.local_query = {1, 1}, .block_keys = std::vector<float>(20, 1), .attention = {}};
          layer.block_keys[4] = bad;
          layer.block_keys[13] = -bad;
          layer.attention.max_block = 2;
          layer.attention.min_block = 6;
          stats.layers.push_back(layer);
        }
        BlockChoice choice{.cut = kCut, .shared = shared, .by_range = by_range, .stable = {0, 1}};
        choice.documents = 2;
        choice.all_blocks = 20;
        const KeptBlocks kept = choose_blocks(choice, {1, 1, 2}, {{1, 1}, {1, bad}}, {stats, stats});
        EXPECT_FALSE(kept[0][0].empty()) << "a share that is no number is all";
        for (const auto& layer : kept) {
          for (const auto& blocks : layer) {
            for (const int32_t b : blocks) EXPECT_TRUE(b >= 1 && b < 8) << b;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvilt
