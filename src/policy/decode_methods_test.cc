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

TEST(DecodeMethods, GoWithEveryPolicyWhoseAnswerSeesAll) {
  for (const std::string& policy : policy_names()) {
    std::map<std::string, std::string> params;
    if (policy == "samkv" || policy == "multi-infllm") {
      for (const std::string method : {"snapkv", "loopserve"}) {
        const auto refused = make_policy(policy, {{"decode", method}});
        ASSERT_FALSE(refused.ok()) << policy;
        EXPECT_NE(refused.error().message.find("its answer sees what it kept"), std::string::npos) << "the reason";
      }
      continue;
    }
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
  const auto quest = rule({{"decode", "quest"}, {"decode_page", "8"}, {"decode_dense_layers", "3"}});
  EXPECT_EQ(quest->page, 8);
  EXPECT_EQ(quest->dense_layers, 3);
  EXPECT_EQ(rule({{"decode", "quest"}})->page, 16);
  EXPECT_EQ(rule({{"decode", "quest"}})->dense_layers, 2);
  EXPECT_EQ(rule({{"decode", "quest"}, {"decode_budget", "4"}})->page, 4) << "a small budget is a page";
  EXPECT_EQ(rule({{"decode", "snapkv"}})->dense_layers, 0);
  EXPECT_EQ(rule({{"decode", "snapkv"}})->top_p, 1);
  EXPECT_EQ(rule({{"decode", "h2o"}, {"decode_budget", "100"}})->recent, 50) << "half of the budget";
  EXPECT_EQ(rule({{"decode", "h2o"}, {"decode_budget", "100"}, {"decode_recent", "10"}})->recent, 10);
  EXPECT_EQ(rule({{"decode", "tidal"}})->selection_below(12, 24), 12) << "the middle";
  EXPECT_EQ(rule({{"decode", "tidal"}, {"decode_select", "9"}})->select, 9);
  EXPECT_EQ(rule({{"decode", "tidal"}, {"decode_top_p", "0.7"}})->top_p, 0.7);
  EXPECT_EQ(rule({{"decode", "snapkv"}, {"decode_top_p", "0.85"}})->top_p, 0.85);
  EXPECT_EQ(rule({{"decode", "snapkv"}, {"decode_budget", "8"}})->recent, 4) << "half of a small budget";
}

TEST(DecodeMethods, StreamingLlmCountsInTheCache) {
  EXPECT_TRUE(rule({{"decode", "streamingllm"}})->at_ranks);
  EXPECT_FALSE(rule({{"decode", "streamingllm"}, {"decode_positions", "text"}})->at_ranks);
  EXPECT_FALSE(rule({{"decode", "snapkv"}})->at_ranks);
}

TEST(DecodeMethods, EvictOnlyWhatIsNeverTakenBack) {
  const auto evicting = [](const std::string& method, const std::string& every = "") {
    std::map<std::string, std::string> params{{"decode", method}, {"decode_evict", "yes"}};
    if (!every.empty()) params["decode_every"] = every;
    return params;
  };
  for (const std::string method : {"snapkv", "pyramidkv", "adakv", "h2o", "streamingllm", "random"}) {
    EXPECT_TRUE(rule(evicting(method))->evict) << method;
    EXPECT_FALSE(rule({{"decode", method}})->evict) << method;
  }
  for (const std::string method : {"loopserve", "quest", "tidal"}) {
    EXPECT_NE(refusal(evicting(method)).find("'" + method + "' may choose what it has left out"), std::string::npos);
  }
  for (const std::string method : {"snapkv", "random"})
    EXPECT_NE(refusal(evicting(method, "8")).find("with decode_every 0"), std::string::npos) << method;
  EXPECT_EQ(refusal(evicting("loopserve", "0")), "");
  EXPECT_EQ(refusal(evicting("h2o", "8")), "");
}

TEST(DecodeMethods, SayWhatIsWrong) {
  EXPECT_NE(refusal({{"decode", "best"}}).find("'best', not one of full, loopserve"), std::string::npos);
  EXPECT_NE(refusal({{"decode_budget", "64"}}).find("no parameter 'decode_budget'"), std::string::npos);
  EXPECT_NE(refusal({{"decode", "snapkv"}, {"decode_pool", "4"}}).find("is even"), std::string::npos);
  EXPECT_NE(refusal({{"decode", "snapkv"}, {"decode_budget", "64"}, {"decode_recent", "65"}}).find("more than"),
            std::string::npos);
  EXPECT_NE(refusal({{"decode", "random"}, {"decode_queries", "3"}}).find("no parameter"), std::string::npos);
  EXPECT_NE(refusal({{"decode", "streamingllm"}, {"decode_recent", "3"}}).find("no parameter"), std::string::npos);
  EXPECT_NE(
      refusal({{"decode", "loopserve"}, {"decode_queries", "16"}, {"decode_every", "1"}}).find("at most 8 for each"),
      std::string::npos);
  EXPECT_NE(refusal({{"decode", "snapkv"}, {"decode_queries", "65"}}).find("from 1 to 64"), std::string::npos);
  EXPECT_NE(
      refusal({{"decode", "quest"}, {"decode_budget", "8"}, {"decode_page", "9"}}).find("more than decode_budget"),
      std::string::npos);
  EXPECT_NE(refusal({{"decode", "quest"}, {"decode_sink", "4"}}).find("no parameter"), std::string::npos);
  EXPECT_NE(refusal({{"decode", "snapkv"}, {"decode_top_p", "0"}}).find("share of nothing"), std::string::npos);
  EXPECT_NE(refusal({{"decode", "snapkv"}, {"decode_top_p", "1.5"}}).find("from 0 to 1"), std::string::npos);
  EXPECT_NE(refusal({{"decode", "random"}, {"decode_top_p", "0.5"}}).find("no parameter"), std::string::npos);
  EXPECT_NE(refusal({{"decode", "streamingllm"}, {"decode_top_p", "0.5"}}).find("no parameter"), std::string::npos);
  EXPECT_NE(refusal({{"decode", "snapkv"}, {"decode_positions", "cache"}}).find("no parameter"), std::string::npos);
  EXPECT_NE(refusal({{"decode", "streamingllm"}, {"decode_positions", "rank"}}).find("not one of cache, text"),
            std::string::npos);
  EXPECT_NE(refusal({{"decode", "quest"}, {"decode_select", "4"}}).find("no parameter"), std::string::npos);
  EXPECT_NE(refusal({{"decode", "snapkv"}, {"decode_page", "4"}}).find("no parameter"), std::string::npos);
  for (const std::string& method : decode_method_names()) {
    if (method == "full") continue;
    EXPECT_EQ(refusal({{"decode", method}, {"decode_budget", "1"}}), "") << method;
  }
}

}  // namespace
}  // namespace kvilt
