// Where templates want what the model thought; real templates: tests/tool_calls_test.cc, whole prompts: chat_test.cc.
#include "engine/past_reasoning.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

ChatInputs placed_in(const std::string& field, bool one_text, const char* message, const std::string& between = "") {
  TemplateTraits traits;
  traits.reasoning = field;
  traits.calls_have_one_text = one_text;
  ChatInputs in;
  in.messages = Json::array({Json::parse(message)});
  place_reasoning(traits, between, in);
  return in;
}

Json placed(const std::string& field, bool one_text, const char* message) {
  return placed_in(field, one_text, message).messages[0];
}

TEST(PastReasoning, HasTheTemplatesName) {
  const char* said = R"({"role": "assistant", "content": "a", "reasoning_content": "hm"})";
  EXPECT_EQ(placed("thinking", true, said), Json::parse(R"({"role": "assistant", "content": "a", "thinking": "hm"})"));
  EXPECT_EQ(placed("reasoning_content", false, R"({"role": "assistant", "reasoning": "hm"})")["reasoning_content"],
            "hm");
  EXPECT_EQ(placed("", false, said), Json::parse(said)) << "the template knows none";
  const char* user = R"({"role": "user", "content": "a", "reasoning_content": "hm"})";
  EXPECT_EQ(placed("thinking", true, user), Json::parse(user));
  // The template's own name wins, and nothing stays under another; an empty text says nothing.
  const char* both = R"({"role": "assistant", "reasoning": "other", "thinking": "hm", "reasoning_content": "more"})";
  EXPECT_EQ(placed("thinking", true, both), Json::parse(R"({"role": "assistant", "thinking": "hm"})"));
  EXPECT_EQ(placed("thinking", true, R"({"role": "assistant", "thinking": "", "reasoning": "hm"})")["thinking"], "hm");
}

TEST(PastReasoning, IsAPartOfTheContentWhereCallsHaveOneText) {
  const char* calling = R"({"role": "assistant", "content": [{"type": "text", "text": "I look."}, {"type": "text",
      "text": "Now."}], "reasoning_content": "hm", "tool_calls": [{"id": "t"}]})";
  const Json one = placed_in("thinking", true, calling, "\n").messages[0];
  EXPECT_FALSE(one.contains("thinking") || one.contains("reasoning_content"));
  ASSERT_EQ(one["content"].size(), 3u);
  EXPECT_EQ(one["content"][0]["text"], "hm\n");
  EXPECT_EQ(one["content"][1]["text"], "I look.");
  const Json two = placed("thinking", false, calling);
  EXPECT_EQ(two["thinking"], "hm");
  EXPECT_EQ(two["content"].size(), 2u);
  for (const char* silent : {R"({"role": "assistant", "content": "a", "thinking": "hm", "tool_calls": []})",
                             R"({"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [{}]})",
                             R"({"role": "assistant", "content": null, "thinking": "hm", "tool_calls": [{}]})"})
    EXPECT_EQ(placed("thinking", true, silent)["thinking"], "hm") << silent;
}

TEST(PastReasoning, MarksStayOnTheirTexts) {
  TemplateTraits traits;
  traits.reasoning = "thinking";
  traits.calls_have_one_text = true;
  ChatInputs in;
  in.messages = Json::parse(R"([{"role": "assistant", "content": "0", "reasoning": "hm", "tool_calls": [{}]},
      {"role": "assistant", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}], "thinking": "hm",
       "tool_calls": [{}]}, {"role": "user", "content": "3"}])");
  int id = 0;
  for (const char* where :
       {"/messages/0/content", "/messages/1/content/0/text", "/messages/1/content/1/text", "/messages/2/content"})
    in.marks.push_back({Json::json_pointer(where), 0, 1, id++});
  place_reasoning(traits, "", in);
  const Json all{{"messages", in.messages}};
  for (const Mark& mark : in.marks) {
    ASSERT_TRUE(all.contains(mark.where)) << mark.where.to_string();
    EXPECT_EQ(all.at(mark.where), std::to_string(mark.id));
  }
  EXPECT_EQ(in.marks[2].where.to_string(), "/messages/1/content/2/text") << "power: they moved";
}

TEST(PastReasoning, WhatIsNotAsExpectedStays) {
  for (const char* odd : {R"({"role": "assistant", "reasoning": {}})",
                          R"({"role": "assistant", "reasoning_content": null, "tool_calls": 5})",
                          R"({"role": "tool", "content": "x", "reasoning": "x"})"})
    EXPECT_EQ(placed("thinking", true, odd), Json::parse(odd));
}

}  // namespace
}  // namespace kvilt
