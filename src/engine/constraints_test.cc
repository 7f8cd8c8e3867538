// A mask that was filled beside the forward pass is the one that a draw fills for itself; what fails there is told at the
// draw.
#include "engine/constraints.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "grammar/vocabulary_for_test.h"

namespace kvilt {
namespace {

class FilledAhead : public testing::Test {
 protected:
  ConstrainedAnswer answer_to(const char* ebnf, GrammarLimits limits = {}) {
    compiler_ = v_.compiler(limits);
    auto made = compiler_->compile(GrammarPart::ebnf(ebnf));
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return {std::move(made).value(), *v_.tokenizer, v_.vocab, {v_.end}, {}};
  }
  static std::vector<int32_t> mask_of(const ConstrainedAnswer& answer) {
    return {answer.may().begin(), answer.may().end()};
  }

  JsonVocabulary v_;
  std::unique_ptr<GrammarCompiler> compiler_;
  const std::vector<float> logits_ = std::vector<float>(static_cast<size_t>(v_.vocab));
};

TEST_F(FilledAhead, IsWhatADrawFills) {
  constexpr const char* kList = "root ::= \"[\" (word (\",\" word)*)? \"]\"\nword ::= \"yes\" | \"no\" | [0-9]+";
  ConstrainedAnswer plain = answer_to(kList), ahead = answer_to(kList);
  std::vector<std::vector<int32_t>> masks;
  for (const unsigned char byte : std::string_view("[yes,12,no]")) {
    ahead.fill_ahead();
    EXPECT_TRUE(ahead.filled());
    EXPECT_FALSE(plain.filled()) << "power";
    const std::vector<int32_t> filled = mask_of(ahead);
    ASSERT_TRUE(ahead.look_at(logits_).ok());
    ASSERT_TRUE(plain.look_at(logits_).ok());
    EXPECT_EQ(mask_of(ahead), filled);
    EXPECT_EQ(mask_of(ahead), mask_of(plain));
    masks.push_back(filled);
    ASSERT_TRUE(ahead.take(1 + byte).ok());
    ASSERT_TRUE(plain.take(1 + byte).ok());
    ASSERT_TRUE(ahead.look_ahead(1 + byte).ok());
    ASSERT_TRUE(plain.look_ahead(1 + byte).ok());
  }
  EXPECT_TRUE(ahead.over() && plain.over());
  EXPECT_NE(masks[0], masks[1]) << "power: masks differ";
  EXPECT_GT(ahead.take_ahead_s(), 0);
  EXPECT_EQ(ahead.take_ahead_s(), 0) << "it was told";
  EXPECT_EQ(plain.take_ahead_s(), 0) << "power";
}

TEST_F(FilledAhead, WhatFailsIsToldAtTheDraw) {
  // It cannot end behind an a: else take() fills the mask to see whether more may come.
  ConstrainedAnswer answer = answer_to("root ::= s \"b\"\ns ::= s s | s s s | \"a\"", {.mask_seconds = 0});
  for (int i = 0; i < 300; ++i) {
    answer.fill_ahead();
    const bool filled = answer.filled();
    const Status looked = answer.look_at(logits_);
    EXPECT_EQ(looked.ok(), filled);
    if (!looked.ok()) {
      EXPECT_EQ(looked.error().code, Code::kExhausted);
      EXPECT_NE(looked.error().message.find("too ambiguous"), std::string::npos) << looked.error().message;
      EXPECT_EQ(answer.look_at(logits_).error().message, looked.error().message) << "the matcher is not used again";
      return;
    }
    const Status taken = answer.take(1 + 'a');
    ASSERT_TRUE(taken.ok()) << taken.error().message;
  }
  ADD_FAILURE() << "power: no step was over its time";
}

}  // namespace
}  // namespace kvilt
