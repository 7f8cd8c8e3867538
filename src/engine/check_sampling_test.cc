#include "engine/check_sampling.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvilt {
namespace {

const std::vector<int32_t> kEos = {7, 8};

TEST(CheckSampling, RangesAndFiniteNumbers) {
  EXPECT_TRUE(check_sampling({}, kEos).ok());
  const auto refused = [](auto change) {
    SamplingParams s;
    change(s);
    return check_sampling(s, kEos).error().code == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](SamplingParams& s) { s.temperature = -1; }));
  EXPECT_TRUE(refused([](SamplingParams& s) { s.top_p = 0; }));
  EXPECT_TRUE(refused([](SamplingParams& s) { s.min_tokens = -1; }));
  EXPECT_TRUE(refused([](SamplingParams& s) { s.max_tokens = -2; }));
  EXPECT_TRUE(refused([](SamplingParams& s) { s.presence_penalty = INFINITY; }));
  EXPECT_TRUE(refused([](SamplingParams& s) { s.logit_bias[1] = NAN; }));
}

// The sampler has no other choice then, and the answer would be empty.
TEST(CheckSampling, SomethingThatIsAllowedMustNotEndTheAnswer) {
  SamplingParams s;
  s.allowed_ids = {5};
  s.stop_ids = {5};
  s.min_tokens = s.max_tokens = 3;
  const Status none = check_sampling(s, kEos);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, Code::kInvalidArgument);
  EXPECT_EQ(none.error().message.find("min_tokens: "), 0u) << none.error().message;
  s.allowed_ids = {5, 7, 8};
  EXPECT_FALSE(check_sampling(s, kEos).ok()) << "the model's own end tokens too";
  s.ignore_eos = true;
  EXPECT_TRUE(check_sampling(s, kEos).ok()) << "they end nothing";
  s.ignore_eos = false;
  s.allowed_ids = {5, 6};
  EXPECT_TRUE(check_sampling(s, kEos).ok());
  s.allowed_ids = {5};
  s.min_tokens = 0;
  EXPECT_TRUE(check_sampling(s, kEos).ok()) << "an empty answer is one";
  s.min_tokens = 3;
  s.allowed_ids = {};
  EXPECT_TRUE(check_sampling(s, kEos).ok()) << "all tokens are allowed";
}

}  // namespace
}  // namespace kvilt
