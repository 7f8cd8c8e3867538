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
  // The same tokens after others: both K below and the states are another text's.
  auto ids_after_others = random_tokens(kLength, 2, on.config());
  std::copy(ids.begin() + kEntering.begin, ids.begin() + kEntering.end, ids_after_others.begin() + kEntering.begin);
  PromptForTest other(on, ids_after_others), dense(on, ids_after_others);
  dense.run(driver);
  enter(other, kv, eight);
  other.run(driver);
  EXPECT_GT(largest_difference(other.logits, dense.logits), 5 * near);
}

}  // namespace
}  // namespace kvilt
