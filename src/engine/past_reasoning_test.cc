// Where templates want what the model thought; real templates: tests/tool_calls_test.cc.
#include "engine/past_reasoning.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

// Its field, and what becomes of one message.
Json placed(const std::string& field, bool one_text, const char* message) {
  TemplateTraits traits;
  traits.reasoning = field;
  traits.calls_have_one_text = one_text;
  Json messages = Json::array({Json::parse(message)});
  place_reasoning(traits, messages);
  return messages[0];
}

TEST(PastReasoning, HasTheTemplatesName) {
  const char* said = R"({"role": "assistant", "content": "a", "reasoning_content": "hm"})";
  EXPECT_EQ(placed("thinking", true, said), Json::parse(R"({"role": "assistant", "content": "a", "thinking": "hm"})"));
  EXPECT_EQ(placed("reasoning_content", false, R"({"role": "assistant", "reasoning": "hm"})")["reasoning_content"],
            "hm");
  EXPECT_EQ(placed("", false, said), Json::parse(said)) << "the template knows none";
  const char* user = R"({"role": "user", "content": "a", "reasoning_content": "hm"})";
  EXPECT_EQ(placed("thinking", true, user), Json::parse(user));
  // The template's own name wins, and nothing stays under another.
  const char* both = R"({"role": "assistant", "reasoning": "other", "thinking": "hm", "reasoning_content": "more"})";
  EXPECT_EQ(placed("thinking", true, both), Json::parse(R"({"role": "assistant", "thinking": "hm"})"));
}

TEST(PastReasoning, CallsWithTwoTextsHaveOneWhereTheTemplateTakesOne) {
  const char* calling = R"({"role": "assistant", "content": [{"type": "text", "text": "I look."}, {"type": "text",
      "text": "Now."}], "reasoning_content": "hm", "tool_calls": [{"id": "t"}]})";
  const Json one = placed("thinking", true, calling);
  EXPECT_EQ(one["thinking"], "hm\n\nI look.\nNow.");
  EXPECT_EQ(one["content"], "");
  const Json two = placed("thinking", false, calling);
  EXPECT_EQ(two["thinking"], "hm");
  EXPECT_EQ(two["content"].size(), 2u);
  EXPECT_EQ(placed("thinking", true,
                   R"({"role": "assistant", "content": "a", "thinking": "hm", "tool_calls": []})")["content"],
            "a");
  EXPECT_EQ(placed("thinking", true,
                   R"({"role": "assistant", "content": null, "thinking": "hm", "tool_calls": [{}]})")["thinking"],
            "hm");
}

TEST(PastReasoning, WhatIsNotAsExpectedStays) {
  for (const char* odd :
       {"1", "[]", R"({"role": 1, "reasoning": "x"})", R"({"role": "assistant", "reasoning": {}})",
        R"({"role": "assistant", "reasoning_content": null})", R"({"reasoning": "x"})",
        R"({"role": "assistant", "content": [{"type": "image"}], "thinking": "x", "tool_calls": [1]})"})
    EXPECT_EQ(placed("thinking", true, odd), Json::parse(odd));
}

}  // namespace
}  // namespace kvilt
