// Rows that enter with a stored state: where the state is the true one, all else follows bit for bit.
#include "forward/annex_rows.h"

#include <gtest/gtest.h>

#include "forward/prompt_for_test.h"
#include "kv/annex.h"

namespace kvilt {
namespace {

constexpr int32_t kLength = 60, kLayer = 3;  // a layer in the middle
constexpr kvilt::Run kEntering{10, 50};

class AnnexRowsTest : public testing::Test {
 protected:
  ModelForTest on{kProbe};
  Driver driver{*on.model, on.pool};

  // Computes the tokens and publishes them with their states.
  std::shared_ptr<const KvSegment> publish(PromptForTest& prompt, AnnexKind kind) {
    prompt.plan.keep = {kind};
    prompt.run(driver, 13);
    auto kv = prompt.publish();
    kv->attach(kind, {0, kLength}, bytes_of(prompt.kept[0], {0, kLength}));
    return kv;
  }
  // Positions kEntering are placed and enter.
  void enter(PromptForTest& prompt, const std::shared_ptr<const KvSegment>& kv, AnnexKind kind) const {
    prompt.table.place({kv, kEntering.begin, kEntering.size(), kEntering.begin});
    Stage& stage = prompt.stage();
    stage.sets.push_back({{0, kEntering.begin}, {kEntering.end, kLength}});
    std::fill_n(stage.write.begin(), kind.layer, uint16_t{1});
    stage.entries = {{kind, {kEntering}}};
    EXPECT_TRUE(validate(prompt.plan, on.config(), {kEntering}).ok());
  }
};

// The first layer that rows can enter, one in the middle, and the last.
TEST_F(AnnexRowsTest, TrueStatesGiveTheTruePass) {
  const auto ids = random_tokens(kLength, 1, on.config());
  PromptForTest plain(on, ids);
  plain.run(driver);
  for (const int layer : {1, kLayer, on.config().L - 1}) {
    SCOPED_TRACE(layer);
    const AnnexKind kind{AnnexOf::kHiddenF32, layer};
    PromptForTest first(on, ids);
    const auto kv = publish(first, kind);
    EXPECT_EQ(first.logits, plain.logits) << "keeping states changes nothing";
    for (const int32_t rows : {kLength, 7}) {
      PromptForTest again(on, ids);
      enter(again, kv, kind);
      again.run(driver, rows);
      EXPECT_EQ(again.logits, first.logits);
      EXPECT_EQ(again.keys({kEntering.end, kLength}), first.keys({kEntering.end, kLength}));
    }
  }
}

TEST_F(AnnexRowsTest, OtherStatesShow) {
  const auto ids = random_tokens(kLength, 1, on.config());
  PromptForTest first(on, ids);
  const AnnexKind eight{AnnexOf::kHiddenInt8, kLayer};
  const auto kv = publish(first, eight);
  PromptForTest rounded(on, ids);
  enter(rounded, kv, eight);
  rounded.run(driver);
  const double near = largest_difference(rounded.logits, first.logits);
  EXPECT_GT(near, 1e-6);
  const AnnexKind half{AnnexOf::kHiddenBF16, kLayer};
  PromptForTest of_half(on, ids), rounded_less(on, ids);
  enter(rounded_less, publish(of_half, half), half);
  rounded_less.run(driver);
  EXPECT_GT(largest_difference(rounded_less.logits, first.logits), 1e-7);
  EXPECT_LT(largest_difference(rounded_less.logits, first.logits), 5 * near);
  // The same tokens after others: both K below and the states are another text's.
  auto ids_after_others = random_tokens(kLength, 2, on.config());
  std::copy(ids.begin() + kEntering.begin, ids.begin() + kEntering.end, ids_after_others.begin() + kEntering.begin);
  PromptForTest other(on, ids_after_others), dense(on, ids_after_others);
  dense.run(driver);
  enter(other, kv, eight);
  other.run(driver);
  EXPECT_GT(largest_difference(other.logits, dense.logits), 5 * near);
}

// A stage that carries and rows that enter: true states and twins of this very context change nothing, to the bit; a
// state that is off by the same everywhere is put right by what the rows from below show of it.
TEST_F(AnnexRowsTest, RowsThatEnterTakeAChangeOver) {
  const auto ids = random_tokens(kLength, 1, on.config());
  const AnnexKind kind{AnnexOf::kHiddenF32, kLayer};
  const Runs below{{20, 21}, {30, 31}, {40, 41}};
  // All of the piece is computed; of its rows those of `below` from the embeddings.
  const auto computed = [&](const std::shared_ptr<const KvSegment>& kv, bool carries, const Runs& more = {}) {
    PromptForTest prompt(on, ids);
    prompt.table.place({kv, kEntering.begin, kEntering.size(), kEntering.begin});
    Stage& stage = prompt.stage();
    const Runs entering = subtract(Runs{kEntering}, unite(below, more));
    stage.sets.push_back(subtract(stage.sets[0], entering));
    std::fill_n(stage.write.begin(), kLayer, uint16_t{1});
    stage.entries = {{kind, entering}};
    if (carries) stage.carry = Carry{.kernel = Carry::Kernel::kMean, .noise = 0.05f, .groups = {{{kEntering}}}};
    EXPECT_TRUE(validate(prompt.plan, on.config(), {kEntering}).ok());
    prompt.run(driver);
    return prompt.logits;
  };
  const auto published = [&](float off, kvilt::Run stored = {0, kLength}) {
    PromptForTest prompt(on, ids);
    prompt.plan.keep = {kind};
    prompt.run(driver);
    for (int32_t pos = 0; pos < kLength; ++pos) {
      float* state = prompt.kept[0].rows.row(pos);
      for (int d = 0; d < on.config().D; ++d) state[d] += off * static_cast<float>(d % 3 - 1);
    }
    auto kv = prompt.publish();
    kv->attach(kind, stored, bytes_of(prompt.kept[0], stored));
    return kv;
  };
  PromptForTest plain(on, ids);
  plain.run(driver);
  const auto exact = published(0), off = published(0.5f);
  EXPECT_EQ(computed(exact, true), plain.logits);
  EXPECT_EQ(computed(exact, false), plain.logits);
  const double left = largest_difference(computed(off, true), plain.logits);
  const double without = largest_difference(computed(off, false), plain.logits);
  EXPECT_GT(without, 1e-3) << "power";
  EXPECT_LT(left, without / 10);  // the mean of three is shrunk by 3 / 3.05
  EXPECT_GT(left, 0);
  // A row from below without a stored state shows nothing: its part of the change is missing.
  const auto some = published(0.5f, {10, 40});
  const double third = largest_difference(computed(some, true, {{40, 50}}), plain.logits);
  EXPECT_GT(third, 2 * left);
  EXPECT_LT(third, without);
}

// Groups come in order: their gains, and so all that follows, are the same in one chunk and in two.
TEST_F(AnnexRowsTest, WhatIsTakenOverDoesNotDependOnTheChunk) {
  const auto ids = random_tokens(kLength, 1, on.config()), others = random_tokens(kLength, 2, on.config());
  auto stored_ids = others;
  std::copy(ids.begin() + kEntering.begin, ids.begin() + kEntering.end, stored_ids.begin() + kEntering.begin);
  const AnnexKind kind{AnnexOf::kHiddenF32, kLayer};
  PromptForTest first(on, stored_ids);
  const auto kv = publish(first, kind);
  const auto computed = [&](int32_t rows, bool gain) {
    PromptForTest prompt(on, ids);
    prompt.table.place({kv, kEntering.begin, kEntering.size(), kEntering.begin});
    Stage& stage = prompt.stage();
    const Runs entering{{14, 26}, {34, 46}};
    stage.sets.push_back(subtract(stage.sets[0], entering));
    std::fill_n(stage.write.begin(), kLayer, uint16_t{1});
    stage.entries = {{kind, entering}};
    stage.carry = Carry{.gain = gain, .groups = {{{{10, 30}}}, {{{30, 50}}}}};
    prompt.run(driver, rows);
    return prompt.logits;
  };
  EXPECT_EQ(computed(30, true), computed(kLength, true));
  EXPECT_NE(computed(kLength, true), computed(kLength, false)) << "power: there is a gain";
}

// Means of states: n = 1 are the bytes themselves, and a share mixes by token, wherever the two stood.
TEST_F(AnnexRowsTest, MeansOfStatesAreByToken) {
  const AnnexKind kind{AnnexOf::kHiddenF32, kLayer};
  PromptForTest first(on, random_tokens(kLength, 1, on.config())), second(on, random_tokens(kLength, 2, on.config()));
  const auto kv = publish(first, kind);
  publish(second, kind);
  const Placement stored(kv, 20, 10, 33);  // its tokens 20 to 30
  const kvilt::Run at{5, 15};
  EXPECT_EQ(mean_bytes(second.kept[0], at, stored, 1), bytes_of(second.kept[0], at));
  const auto mixed = mean_bytes(second.kept[0], at, stored, 0.25f);
  const int D = on.config().D;
  ASSERT_EQ(mixed.size(), static_cast<size_t>(10 * state_bytes(kind, D)));
  const auto* x = reinterpret_cast<const float*>(mixed.data());
  for (int32_t i = 0; i < 10; ++i) {
    for (int d = 0; d < D; ++d)
      EXPECT_EQ(x[i * D + d], 0.25f * second.kept[0].rows.row(5 + i)[d] + 0.75f * first.kept[0].rows.row(20 + i)[d]);
  }
  EXPECT_EQ(state_bytes({AnnexOf::kHiddenBF16, kLayer}, D), 2 * D);
}

}  // namespace
}  // namespace kvilt
