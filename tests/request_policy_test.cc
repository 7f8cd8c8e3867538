// What a client writes under "kvilt" in a request's JSON, as far as the policy that is made of it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "policy/policy.h"
#include "server/openai_request.h"

namespace kvilt {
namespace {

std::string refused(const std::string& settings) {
  const auto body = R"({"messages": [{"role": "user", "content": "hi"}], "kvilt": )" + settings + "}";
  const auto parsed = server::parse_chat(server::Json::parse(body), server::RequestLimits());
  EXPECT_TRUE(parsed.ok()) << body;
  if (!parsed.ok()) return "";
  const PolicyChoice& choice = parsed.value().generation.policy;
  const auto policy = make_policy(choice.name, choice.params);
  return policy.ok() ? "" : policy.error().message;
}

TEST(RequestPolicy, EveryYesAndNoMayBeABoolean) {
  for (const char* value : {"true", "false", R"("yes")", R"("no")"}) {
    for (const auto& [policy, name] : {std::pair("mend", "gain"), std::pair("mend", "value_norm"),
                                       std::pair("naive", "align"), std::pair("prophetkv", "value_norm")}) {
      const std::string settings = std::string(R"({"policy": ")") + policy + R"(", ")" + name + R"(": )" + value + "}";
      EXPECT_EQ(refused(settings), "") << settings;
    }
  }
  EXPECT_NE(refused(R"({"policy": "mend", "gain": 1})"), "") << "power";
  EXPECT_NE(refused(R"({"policy": "mend", "gane": true})"), "") << "power";
}

}  // namespace
}  // namespace kvilt
