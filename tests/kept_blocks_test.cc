// What SamKV leaves out is not touched (docs/papers.md#samkv): a plan of the policy, computed over documents whose KV
// differs where nothing is kept, gives the same logits, bit for bit.
#include <gtest/gtest.h>

#include "forward/prompt_for_test.h"
#include "policy/document_stage.h"

namespace kvilt {
namespace {

constexpr int32_t kWords = 5, kDocument = 100, kAsked = 12, kBlock = 8;
constexpr kvilt::Run kPiece{kWords, kWords + kDocument};

class KeptBlocks : public testing::Test {
 protected:
  // What an earlier request found out about the document.
  std::vector<std::byte> stats() const {
    const BlockCut cut{.block = kBlock};
    DocumentStats out;
    out.tokens = kDocument;
    for (int l = 0; l < c.L; ++l) {
      const auto seed = static_cast<uint32_t>(10 * l);
      LayerStats layer;
      layer.local_query = random_floats(static_cast<size_t>(c.H * c.E), seed);
      layer.block_keys = random_floats(static_cast<size_t>(cut.blocks(kDocument) * c.G * c.E), seed + 1);
      layer.attention = {.max_block = 3, .min_block = 5, .outliers = {}};
      out.layers.push_back(std::move(layer));
    }
    return to_bytes(out, cut);
  }
  // The policy's plan, once the question has asked.
  Plan chosen(std::map<std::string, std::string> params) const {
    params.insert({{"block", std::to_string(kBlock)}, {"stable_begin", "0"}, {"keep", "0.6"}});  // what is given stays
    const auto policy = std::move(make_policy("samkv", params).value());
    PromptLayout layout;
    layout.prompt_len = kPiece.end + kAsked;
    layout.pieces = {kPiece};
    layout.blocks = {{kBlockStats, kPiece, stats()}};
    Plan plan = policy->plan(layout, c);
    EXPECT_EQ(plan.stages[0].probes.size(), 1u) << "the question's; the document's own are stored";
    Probe asked = empty_probe(plan.stages[0].probes[0], c, layout.prompt_len);
    for (int l = 0; l < c.L; ++l) {
      const auto query = random_floats(static_cast<size_t>(c.H * c.E), 100 + static_cast<uint32_t>(l));
      asked.sums[l].assign(query.begin(), query.end());
    }
    policy->refine(layout, c, 0, std::span(&asked, 1), plan);
    EXPECT_TRUE(validate(plan, c, {kPiece}).ok());
    return plan;
  }
  // The document's KV, with other numbers at `others` (positions of the prompt, by layer).
  std::shared_ptr<const KvSegment> document(const std::vector<Runs>& others) {
    PageTable table(*on.store, c.ropes());
    table.add(std::vector<Runs>{{{0, kDocument}}}, std::vector<uint16_t>(static_cast<size_t>(c.L), 0));
    for (int l = 0; l < c.L; ++l) {
      for (int32_t pos = 0; pos < kDocument; ++pos) {
        const bool other = !intersect(others[l], Runs{{kWords + pos, kWords + pos + 1}}).empty();
        const auto seed = static_cast<uint32_t>(2 * (l * kDocument + pos) + (other ? 500000 : 1000));
        const auto size = static_cast<size_t>(c.G * c.E);
        table.write(l, pos, random_floats(size, seed).data(), random_floats(size, seed + 1).data());
      }
    }
    return table.publish({0, kDocument});
  }
  // The last stage, over that document.
  std::vector<float> logits(const Plan& plan, const std::vector<Runs>& others) {
    PromptForTest prompt(on, random_tokens(kPiece.end + kAsked, 7, c));
    prompt.table.place({document(others), 0, kDocument, kPiece.begin});
    prompt.plan = plan;
    prompt.plan.stages = {plan.stages.back()};
    prompt.run(driver);
    return prompt.logits;
  }

  ModelForTest on{kProbe};
  const ModelConfig& c = on.config();
  Driver driver{*on.model, on.pool};
};

TEST_F(KeptBlocks, OnlyTheyAreTouched) {
  const Plan plan = chosen({{"recompute", "none"}});
  const std::vector<Runs>& unseen = plan.stages.back().unseen;
  ASSERT_EQ(unseen.size(), static_cast<size_t>(c.L));
  const std::vector<Runs> none(static_cast<size_t>(c.L));
  const auto as_it_is = logits(plan, none);
  EXPECT_EQ(logits(plan, unseen), as_it_is) << "all that no layer keeps";
  bool differ = false;  // by layer
  for (int l = 0; l < c.L; ++l) {
    EXPECT_GT(count(unseen[l]), 0);
    differ |= unseen[l] != unseen[0];
    const Runs kept = subtract(Runs{kPiece}, unseen[l]);
    std::vector<Runs> one = none;
    one[l] = {{kept.front().begin, kept.front().begin + kBlock}};
    EXPECT_NE(logits(plan, one), as_it_is) << "power: a block that layer " << l << " keeps";
    one[l] = {{unseen[l].front().begin, unseen[l].front().begin + kBlock}};
    EXPECT_EQ(logits(plan, one), as_it_is) << l;
  }
  EXPECT_TRUE(differ) << "power: a block is left out in some layers only";
}

// Rows that are computed again see what some layer keeps, as it is cached where theirs does not; nothing else.
TEST_F(KeptBlocks, TheRepairSeesWhatSomeLayerKeeps) {
  for (const std::string blocks : {"shared", "layer"}) {
    const Plan plan = chosen({{"recompute", "all"}, {"blocks", blocks}, {"keep", "0.32"}});
    ASSERT_EQ(plan.stages.size(), 3u) << "question, repair, answer";
    const Stage &repair = plan.stages[1], &answer = plan.stages[2];
    EXPECT_EQ(answer.unseen,
              chosen({{"recompute", "none"}, {"blocks", blocks}, {"keep", "0.32"}}).stages.back().unseen);
    Runs nowhere{kPiece};
    for (const Runs& unseen : answer.unseen) nowhere = intersect(nowhere, unseen);
    EXPECT_GT(count(nowhere), 0) << "power";
    for (int l = 0; l < c.L; ++l) {
      EXPECT_EQ(repair.unseen[l], nowhere);
      EXPECT_EQ(answer.unseen[l] == nowhere, blocks == "shared");
      EXPECT_TRUE(intersect(repair.write_at(l), answer.unseen[l]).empty()) << l;
    }
  }
}

}  // namespace
}  // namespace kvilt
