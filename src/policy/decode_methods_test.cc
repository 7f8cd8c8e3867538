// Decode methods by name and parameter.
#include "policy/decode_methods.h"

#include <gtest/gtest.h>

#include "policy/policy.h"

namespace kvilt {
namespace {

std::optional<DecodeRule> rule(std::map<std::string, std::string> params, const std::string& policy = "full") {
  const auto made = make_policy(policy, params);
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return made.ok() ? (*made)->decode_rule() : std::nullopt;
}

std::string refusal(std::map<std::string, std::string> params) {
  const auto made = make_policy("mend", params);
  return made.ok() ? "" : made.error().message;
}

TEST(DecodeMethods, GoWithEveryPolicy) {
  for (const std::string& policy : policy_names()) {
    std::map<std::string, std::string> params;
    if (policy == "redknot") params["global"] = "all";
    EXPECT_FALSE(rule(params, policy)) << policy;
    params["decode"] = "snapkv";
    EXPECT_TRUE(rule(params, policy)) << policy;
  }
  EXPECT_FALSE(rule({{"decode", "full"}}));
}

TEST(DecodeMethods, TakeTheirParameters) {
  const auto loopserve = rule({{"decode", "loopserve"}, {"decode_budget", "64"}, {"decode_every", "8"}});
  EXPECT_EQ(loopserve->budget, 64);
  EXPECT_EQ(loopserve->every, 8);
  EXPECT_EQ(loopserve->dense_rows, 16);
  EXPECT_EQ(rule({{"decode", "adakv"}})->own_share, 0.2);
  EXPECT_EQ(rule({{"decode", "snapkv"}, {"decode_budget", "8"}})->recent, 4) << "half of a small budget";
}

TEST(DecodeMethods, SayWhatIsWrong) {
  EXPECT_NE(refusal({{"decode", "best"}}).find("'best', not one of full, loopserve"), std::string::npos);
  EXPECT_NE(refusal({{"decode_budget", "64"}}).find("no parameter 'decode_budget'"), std::string::npos);
  EXPECT_NE(refusal({{"decode", "snapkv"}, {"decode_pool", "4"}}).find("is even"), std::string::npos);
  EXPECT_NE(refusal({{"decode", "snapkv"}, {"decode_budget", "64"}, {"decode_recent", "65"}}).find("more than"),
            std::string::npos);
  EXPECT_NE(refusal({{"decode", "random"}, {"decode_queries", "3"}}).find("no parameter"), std::string::npos);
  EXPECT_NE(refusal({{"decode", "streamingllm"}, {"decode_recent", "3"}}).find("no parameter"), std::string::npos);
  EXPECT_NE(refusal({{"decode", "loopserve"}, {"decode_every", "1"}}).find("at most 8 for each"), std::string::npos);
  EXPECT_NE(refusal({{"decode", "snapkv"}, {"decode_queries", "65"}}).find("from 1 to 64"), std::string::npos);
  for (const std::string& method : decode_method_names()) {
    if (method == "full") continue;
    EXPECT_EQ(refusal({{"decode", method}, {"decode_budget", "1"}}), "") << method;
  }
}

}  // namespace
}  // namespace kvilt
