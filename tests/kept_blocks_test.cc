// What SamKV leaves out is not touched (docs/papers.md#samkv): a plan of the policy, computed over a document whose KV
// is not a number where nothing is kept, gives the same logits, bit for bit; so do the rows of an answer.
#include <gtest/gtest.h>

#include <limits>

#include "forward/prompt_for_test.h"
#include "policy/document_stage.h"
#include "sched/prefill.h"
#include "sched/sequence.h"

namespace kvilt {
namespace {

constexpr int32_t kWords = 5, kDocument = 100, kAsked = 12, kBlock = 8, kAnswer = 5;
constexpr kvilt::Run kPiece{kWords, kWords + kDocument};
using Params = std::map<std::string, std::string>;

// The model, and the backend.
class KeptBlocks : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  KeptBlocks() {
    layout.prompt_len = kPiece.end + kAsked;
    layout.pieces = {kPiece};
    layout.blocks = {{kBlockStats, kPiece, stats(false)}, {kBlockMeans, kPiece, stats(true)}};
  }
  // What an earlier request found out about the document; means: as multi-infllm does.
  std::vector<std::byte> stats(bool means) const {
    const BlockCut cut = means ? BlockCut{.block = kBlock, .initial = 0, .local = 0} : BlockCut{.block = kBlock};
    DocumentStats out;
    out.tokens = kDocument;
    for (int l = 0; l < c.L; ++l) {
      const auto seed = static_cast<uint32_t>(10 * l);
      LayerStats layer;
      layer.block_keys = random_floats(static_cast<size_t>(cut.blocks(kDocument) * c.G * c.E), seed + 1);
      if (!means) {
        layer.local_query = random_floats(static_cast<size_t>(c.H * c.E), seed);
        layer.attention = {.max_block = 3, .min_block = 5, .outliers = {{20, 23}, {41, 60}}};
      }
      out.layers.push_back(std::move(layer));
    }
    return to_bytes(out, cut);
  }
  static std::unique_ptr<ReusePolicy> samkv(Params params) {
    params.insert({{"block", std::to_string(kBlock)}, {"stable_begin", "0"}, {"keep", "0.6"}});  // what is given stays
    return std::move(make_policy("samkv", params).value());
  }
  // The policy's plan, once the question has asked.
  Plan chosen(const Params& params) const {
    const auto policy = samkv(params);
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
  // The document's KV; at `bad` (positions of the prompt, by layer) not a number.
  std::shared_ptr<const KvSegment> document(const std::vector<Runs>& bad) {
    PageTable table(*on.store, c.ropes());
    table.add(std::vector<Runs>{{{0, kDocument}}}, std::vector<uint16_t>(static_cast<size_t>(c.L), 0));
    const auto size = static_cast<size_t>(c.G * c.E);
    const std::vector<float> nan(size, std::numeric_limits<float>::quiet_NaN());
    for (int l = 0; l < c.L; ++l) {
      for (int32_t pos = 0; pos < kDocument; ++pos) {
        const auto seed = static_cast<uint32_t>(2 * (l * kDocument + pos) + 1000);
        const bool wrong = contains(bad[l], kWords + pos);
        table.write(l, pos, wrong ? nan.data() : random_floats(size, seed).data(),
                    wrong ? nan.data() : random_floats(size, seed + 1).data());
      }
    }
    return table.publish({0, kDocument});
  }
  // The last stage, over that document.
  std::vector<float> logits(const Plan& plan, const std::vector<Runs>& bad) {
    PromptForTest prompt(on, ids());
    prompt.table.place({document(bad), 0, kDocument, kPiece.begin});
    prompt.plan = plan;
    prompt.plan.stages = {plan.stages.back()};
    prompt.run(driver);
    return prompt.logits;
  }
  // Prompt and answer.
  std::vector<int32_t> ids(int32_t answer = 0) const {
    auto out = random_tokens(kPiece.end + kAsked + kAnswer, 7, c);
    out.resize(static_cast<size_t>(kPiece.end + kAsked + answer));
    return out;
  }

  struct Answered {
    Plan plan;                               // as it was chosen
    std::vector<std::vector<double>> asked;  // the question's mean query over what it saw first, by layer
    std::vector<float> logits;               // of the prompt's last row, and of the rows of a given answer
  };
  // All stages over that document, and an answer: what the engine makes of a prompt (sched/).
  Answered answered(const ReusePolicy& policy, const std::vector<Runs>& bad) {
    const std::vector<int32_t> tokens = ids(kAnswer);
    const auto V = static_cast<size_t>(c.V);
    Answered out;
    out.logits.resize((1 + kAnswer) * V);
    PageTable table(*on.store, c.ropes());
    table.place({document(bad), 0, kDocument, kPiece.begin});
    Prefill prefill(policy, layout, c);
    while (!prefill.done()) {
      if (!prefill.has_slots()) {
        const Prefill::Writes writes = prefill.writes();
        table.add(writes.sets, writes.write);
        prefill.slots_added();
      }
      const Band& band = prefill.band();
      if (band.cut && !band.last && band.layer_begin == 0 && prefill.at_band_start())
        prefill.hidden().reset(band.cut_rows, c.D);
      Chunk chunk = chunk_of(table, tokens, prefill.plan(), prefill.stage(), band, prefill.next_chunk(50));
      chunk.hidden = &prefill.hidden();
      chunk.carry = &prefill.carry();
      chunk.probes = prefill.probes();
      if (prefill.is_final(chunk.range)) chunk.logits = out.logits.data();
      driver.run({&chunk, 1});
      if (out.asked.empty() && !chunk.probes.empty() && chunk.range.end == layout.prompt_len)
        out.asked = chunk.probes[0].sums;
      prefill.advance(chunk.range);
    }
    out.plan = prefill.plan();
    DecodeRow row;
    row.take_views(out.plan);
    for (int32_t i = 0; i < kAnswer; ++i) {
      const int32_t pos = layout.prompt_len + i;
      table.add_next(pos);
      row.set({pos, pos + 1}, c);
      Chunk chunk = chunk_of(table, tokens, row.plan, row.plan.stages[0], row.band, {pos, pos + 1});
      chunk.logits = out.logits.data() + (1 + static_cast<size_t>(i)) * V;
      driver.run({&chunk, 1});
    }
    return out;
  }
  static Chunk chunk_of(PageTable& table, std::span<const int32_t> tokens, const Plan& plan, const Stage& stage,
                        const Band& band, kvilt::Run range) {
    Chunk out;
    out.kv = &table;
    out.plan = &plan;
    out.stage = &stage;
    out.band = &band;
    out.range = range;
    out.tokens = tokens;
    return out;
  }
  std::vector<Runs> at(int layer, const Runs& positions) const {
    std::vector<Runs> out(static_cast<size_t>(c.L));
    out[layer] = positions;
    return out;
  }
  // The first block of these positions; where the layer has a window, the last one, which the answer can see.
  Runs block_of(int layer, const Runs& positions) const {
    const kvilt::Run run = c.window_at(layer) < 0 ? positions.front() : positions.back();
    const int32_t end = c.window_at(layer) < 0 ? std::min(run.end, run.begin + kBlock) : run.end;
    return {{std::max(run.begin, end - kBlock), end}};
  }

  ModelForTest on{std::get<0>(GetParam()), std::get<1>(GetParam())};
  const ModelConfig& c = on.config();
  Driver driver{*on.model, on.pool};
  PromptLayout layout;
  const std::vector<Runs> none = std::vector<Runs>(static_cast<size_t>(c.L));
};

TEST_P(KeptBlocks, OnlyTheyAreTouched) {
  const Plan plan = chosen({{"recompute", "none"}});
  const std::vector<Runs>& unseen = plan.stages.back().unseen;
  ASSERT_EQ(unseen.size(), static_cast<size_t>(c.L));
  const auto as_it_is = logits(plan, none);
  EXPECT_EQ(logits(plan, unseen), as_it_is) << "all that no layer keeps";
  bool differ = false;  // by layer
  for (int l = 0; l < c.L; ++l) {
    EXPECT_GT(count(unseen[l]), 0);
    differ |= unseen[l] != unseen[0];
    EXPECT_NE(logits(plan, at(l, block_of(l, subtract(Runs{kPiece}, unseen[l])))), as_it_is)
        << "power: a block that layer " << l << " keeps";
    EXPECT_EQ(logits(plan, at(l, block_of(l, unseen[l]))), as_it_is) << l;
  }
  EXPECT_TRUE(differ) << "power: a block is left out in some layers only";
}

// Rows that are computed again see what some layer keeps, as it is cached where theirs does not; nothing else.
TEST_P(KeptBlocks, TheRepairSeesWhatSomeLayerKeeps) {
  for (const std::string blocks : {"shared", "layer"}) {
    const Plan plan = chosen({{"recompute", "all"}, {"blocks", blocks}, {"keep", "0.32"}});
    ASSERT_EQ(plan.stages.size(), 3u) << "question, repair, answer";
    const Stage &repair = plan.stages[1], &answer = plan.stages[2];
    ASSERT_EQ(repair.unseen.size(), static_cast<size_t>(c.L));
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

// The rows of the answer see what the question's saw, and nothing else of the document: neither of SamKV, nor of its
// baseline.
TEST_P(KeptBlocks, TheAnswerTouchesThemOnly) {
  const Params blocks{{"block", "8"}, {"init", "8"}, {"local", "16"}, {"topk", "4"}};
  const auto infllm = std::move(make_policy("multi-infllm", blocks).value());
  const auto own = samkv({{"recompute", "none"}});
  for (const ReusePolicy* policy : {infllm.get(), own.get()}) {
    SCOPED_TRACE(policy == own.get() ? "samkv" : "multi-infllm");
    const Answered as_it_is = answered(*policy, none);
    const std::vector<Runs>& unseen = as_it_is.plan.stages.back().unseen;
    for (const float logit : as_it_is.logits) ASSERT_TRUE(std::isfinite(logit));
    const Answered again = answered(*policy, unseen);
    EXPECT_EQ(again.plan.stages.back().unseen, unseen);
    EXPECT_EQ(again.logits, as_it_is.logits);
    for (int l = 0; l < c.L; ++l) {
      EXPECT_GT(count(unseen[l]), 0);
      const Answered kept = answered(*policy, at(l, block_of(l, subtract(Runs{kPiece}, unseen[l]))));
      for (size_t row = 0; row <= kAnswer; ++row)
        EXPECT_TRUE(std::isnan(kept.logits[row * static_cast<size_t>(c.V)])) << "power: of layer " << l << ", " << row;
    }
  }
}

// Before anybody has chosen, the question sees the document's ends alone; the choice is made of what it asks there.
TEST_P(KeptBlocks, TheQuestionTouchesTheEndsOnly) {
  const auto policy = samkv({{"recompute", "none"}});
  const Answered as_it_is = answered(*policy, none);
  ASSERT_EQ(as_it_is.plan.stages[0].unseen.size(), static_cast<size_t>(c.L));
  const Runs middle = as_it_is.plan.stages[0].unseen[0];
  EXPECT_EQ(count(middle), kDocument - kBlock - (kBlock + kDocument % kBlock)) << "but for the first and the last two";
  const Answered again = answered(*policy, std::vector<Runs>(static_cast<size_t>(c.L), middle));
  ASSERT_EQ(again.asked.size(), static_cast<size_t>(c.L));
  EXPECT_EQ(again.asked, as_it_is.asked);
  EXPECT_EQ(again.plan.stages.back().unseen, as_it_is.plan.stages.back().unseen);
  EXPECT_NE(again.logits, as_it_is.logits) << "power: what was chosen is read then";
  for (const Runs& end : {Runs{{kPiece.begin, middle.front().begin}}, Runs{{middle.back().end, kPiece.end}}}) {
    const int layer = c.window_at(0) < 0 ? 0 : 1;
    EXPECT_NE(answered(*policy, at(layer, end)).asked, as_it_is.asked) << "power";
  }
}

// The rows that are computed again touch what some layer keeps; so does all that comes after them.
TEST_P(KeptBlocks, TheRepairTouchesWhatSomeLayerKeeps) {
  for (const char* recompute : {"rule", "all"}) {
    SCOPED_TRACE(recompute);
    const auto policy = samkv({{"recompute", recompute}, {"keep", "0.4"}});
    const Answered as_it_is = answered(*policy, none);
    ASSERT_EQ(as_it_is.plan.stages.size(), 3u) << "question, repair, answer";
    const Stage &repair = as_it_is.plan.stages[1], &answer = as_it_is.plan.stages[2];
    ASSERT_EQ(repair.unseen.size(), static_cast<size_t>(c.L));
    EXPECT_GT(count(repair.unseen[0]), 0);
    EXPECT_EQ(answered(*policy, repair.unseen).logits, as_it_is.logits);
    // Power: the repair reads what another layer keeps, the answer does not.
    int others = 0;
    for (int l = 0; l + 1 < c.L; ++l) {
      const Runs elsewhere = subtract(answer.unseen[l], repair.unseen[l]);
      if (elsewhere.empty() || c.window_at(l) >= 0) continue;
      ++others;
      EXPECT_NE(answered(*policy, at(l, block_of(l, elsewhere))).logits, as_it_is.logits) << l;
    }
    EXPECT_GT(others, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, KeptBlocks,
                         testing::Combine(testing::Values(kProbe, kGemma), testing::Values("reference", "auto")),
                         [](const auto& info) {
                           const bool probe = std::string(std::get<0>(info.param)) == kProbe;
                           return std::string(probe ? "probe_" : "windows_") + std::get<1>(info.param);
                         });

}  // namespace
}  // namespace kvilt
