// The pass, on tiny models: chunks, batches and cuts change no bit of it; what a plan leaves out changes it.
#include "forward/driver.h"

#include <gtest/gtest.h>

#include "forward/prompt_for_test.h"

namespace kvilt {
namespace {

constexpr int32_t kT = 60;
const Runs kSome{{0, 10}, {25, 40}, {55, kT}};  // written after a cut at layer 2, and looking at it

void cut_at_two(PromptForTest& prompt, const Runs& after) {
  Stage& stage = prompt.stage();
  stage.sets.push_back(after);
  std::fill(stage.write.begin() + 2, stage.write.end(), uint16_t{1});
  stage.cuts = {2};
}

class DriverTest : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  DriverTest() : on(std::get<0>(GetParam()), std::get<1>(GetParam())), driver(*on.model, on.pool) {}
  std::vector<int32_t> tokens(uint32_t seed) const { return random_tokens(kT, seed, on.config()); }

  ModelForTest on;
  Driver driver;
};

TEST_P(DriverTest, ABandInChunksEqualsTheBandWhole) {
  PromptForTest whole(on, tokens(1)), chunked(on, tokens(1)), other(on, tokens(2));
  whole.run(driver);
  chunked.run(driver, 7);
  other.run(driver);
  EXPECT_EQ(whole.logits, chunked.logits);
  EXPECT_EQ(whole.keys({0, kT}), chunked.keys({0, kT}));
  EXPECT_GT(largest_difference(whole.logits, other.logits), 1e-3) << "power";
  EXPECT_GT(largest_difference(whole.keys({0, kT}), other.keys({0, kT})), 1e-3) << "power";
}

TEST_P(DriverTest, ASequenceInABatchEqualsTheSequenceAlone) {
  PromptForTest a(on, tokens(1)), b(on, tokens(2)), batched_a(on, tokens(1)), batched_b(on, tokens(2));
  a.run(driver);
  b.run(driver);
  batched_a.enter();
  batched_b.enter();
  // Unequal parts side by side: rows 0-19 of a, 0-29 of b; then the rest.
  Chunk first[] = {batched_a.chunk({0, 20}), batched_b.chunk({0, 30})};
  driver.run(first);
  Chunk second[] = {batched_a.chunk({20, kT}), batched_b.chunk({30, kT})};
  driver.run(second);
  EXPECT_EQ(a.logits, batched_a.logits);
  EXPECT_EQ(b.logits, batched_b.logits);
  EXPECT_EQ(b.keys({0, kT}), batched_b.keys({0, kT}));
  EXPECT_GT(largest_difference(a.logits, b.logits), 1e-3) << "power";
  EXPECT_GT(second[0].work.linear_flops, first[0].work.linear_flops);  // 40 rows against 20
  EXPECT_EQ(first[0].work.linear_flops * 3, first[1].work.linear_flops * 2) << "no logits yet: by rows";
}

TEST_P(DriverTest, ACutThatDropsNothingIsNone) {
  PromptForTest plain(on, tokens(1)), cut(on, tokens(1)), narrow(on, tokens(1)), narrow_chunked(on, tokens(1));
  cut_at_two(cut, {{0, kT}});
  cut_at_two(narrow, kSome);
  cut_at_two(narrow_chunked, kSome);
  plain.run(driver);
  cut.run(driver, 13);
  EXPECT_EQ(plain.logits, cut.logits);
  EXPECT_EQ(plain.keys({0, kT}), cut.keys({0, kT}));
  narrow.run(driver);
  narrow_chunked.run(driver, 9);
  EXPECT_EQ(narrow.logits, narrow_chunked.logits);
  EXPECT_GT(largest_difference(plain.logits, narrow.logits), 1e-5) << "power: rows see fewer keys";
}

TEST_P(DriverTest, RowsThatOnlyProbeLeaveNoTrace) {
  PromptForTest plain(on, tokens(1)), probed(on, tokens(1));
  cut_at_two(plain, kSome);
  cut_at_two(probed, kSome);
  probed.stage().probes = {{Estimator::kColumnSum, {2}, {{12, 20}}},
                           {Estimator::kColumnSum, {on.config().L - 1}, {{58, kT}}}};
  plain.run(driver, 13);
  probed.run(driver, 13);
  EXPECT_EQ(plain.logits, probed.logits);
  double sums[2] = {};
  for (size_t p = 0; p < 2; ++p) {
    for (const double score : probed.probes[p].score) sums[p] += score;
  }
  EXPECT_NEAR(sums[0], 8.0 * on.config().H, 1e-3) << "each row and query head spreads a weight of one";
  EXPECT_NEAR(sums[1], 2.0 * on.config().H, 1e-3);
}

TEST_P(DriverTest, AnFfnRuleOfAllRowsIsNone) {
  PromptForTest plain(on, tokens(1)), all(on, tokens(1)), some(on, tokens(1)), none(on, tokens(1));
  FfnRule rule;
  rule.recent = 1;
  all.stage().ffn = rule;
  all.stage().ffn->recent = kT;  // all of them, by the rows' own way
  all.stage().ffn->mass = all.stage().ffn->deep_mass = 0.1;
  some.stage().ffn = rule;
  some.stage().ffn->mass = some.stage().ffn->deep_mass = 0.5;
  for (PromptForTest* prompt : {&plain, &all, &some}) prompt->run(driver);
  EXPECT_EQ(plain.logits, all.logits);
  EXPECT_GT(largest_difference(plain.logits, some.logits), 1e-5) << "power";
}

INSTANTIATE_TEST_SUITE_P(All, DriverTest,
                         testing::Combine(testing::Values(kGemma, kMoe, kProbe), testing::Values("reference", "auto")),
                         [](const auto& info) {
                           const std::string path = std::get<0>(info.param);
                           const char* name = path == kGemma ? "gemma3" : path == kMoe ? "moe" : "probe";
                           return std::string(name) + "_" + std::get<1>(info.param);
                         });

}  // namespace
}  // namespace kvilt
