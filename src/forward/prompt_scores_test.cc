#include "forward/prompt_scores.h"

#include <gtest/gtest.h>

#include <limits>

#include "forward/sampler.h"

namespace kvilt {
namespace {

TEST(PromptScores, ARowSpeaksOfTheTokenBehindIt) {
  const std::vector<int32_t> prompt{2, 0, 3};
  const std::vector<float> a{1, 2, 3, 4}, b{4, 0, 0, 1};
  PromptScores scores(prompt, 2);
  EXPECT_TRUE(scores.takes(1));
  EXPECT_FALSE(scores.takes(2)) << "no token of the prompt is behind it";
  scores.take(1, b);  // in any order
  scores.take(0, a);
  EXPECT_FALSE(scores.unsound());
  const std::vector<TokenLogprob> out = scores.release();
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(out[0].id, 2);
  EXPECT_EQ(out[1].id, 0);
  EXPECT_EQ(out[1].logprob, Sampler::logprob(a, 0, 2).logprob);
  EXPECT_EQ(out[1].rank, 4);
  EXPECT_EQ(out[2].top, Sampler::logprob(b, 3, 2).top);
  EXPECT_EQ(out[2].rank, 2);
}

TEST(PromptScores, TheFirstRowThatIsNoNumbersIsNamed) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<int32_t> prompt{1, 1, 1, 1};
  for (const float bad : {kNan, kInfinity}) {
    PromptScores scores(prompt, 1);
    scores.take(0, std::vector<float>{0, 1});
    scores.take(1, std::vector<float>{0, -kInfinity});  // impossible, and a number all the same
    EXPECT_FALSE(scores.unsound());
    scores.take(2, std::vector<float>{bad, 1});
    EXPECT_EQ(scores.unsound(), 2);
  }
}

TEST(PromptScores, OneTokenHasNothingBefore) {
  PromptScores scores(std::vector<int32_t>{5}, 0);
  EXPECT_FALSE(scores.takes(0));
  EXPECT_EQ(scores.release().size(), 1u);
}

}  // namespace
}  // namespace kvilt
