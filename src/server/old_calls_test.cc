// Calls of OpenAI's first form in a conversation.
#include "server/old_calls.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvilt::server {
namespace {

Json body_of(const char* messages) { return {{"messages", Json::parse(messages)}}; }

TEST(OldCalls, BecomeToolCallsAndTheirAnswers) {
  Json body = body_of(R"([{"role": "user", "content": "hi"},
      {"role": "assistant", "content": null, "function_call": {"name": "weather", "arguments": "{\"city\": \"Ulm\"}"}},
      {"role": "function", "name": "weather", "content": "rain"},
      {"role": "assistant", "content": "again", "tool_calls": [], "function_call": {"name": "time", "arguments": {}}},
      {"role": "function", "content": "noon"},
      {"role": "assistant", "content": "done", "function_call": null}])");
  EXPECT_FALSE(settle_old_calls(body));
  EXPECT_EQ(body, body_of(R"([{"role": "user", "content": "hi"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "call00001", "type": "function", "function":
          {"name": "weather", "arguments": "{\"city\": \"Ulm\"}"}}]},
      {"role": "tool", "name": "weather", "content": "rain", "tool_call_id": "call00001"},
      {"role": "assistant", "content": "again", "tool_calls": [{"id": "call00003", "type": "function", "function":
          {"name": "time", "arguments": {}}}]},
      {"role": "tool", "content": "noon", "tool_call_id": "call00003"},
      {"role": "assistant", "content": "done", "function_call": null}])"));
}

TEST(OldCalls, LeaveAloneWhatIsNone) {
  const char* messages = R"([{"role": "function", "name": "f", "content": "x"}, 5,
      {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
      {"role": "function", "name": "f", "content": "x"}])";
  Json body = body_of(messages);
  EXPECT_FALSE(settle_old_calls(body));
  EXPECT_EQ(body, body_of(messages)) << "no function_call is there that these would answer";
  for (const Json& other : {Json::object(), Json{{"messages", "x"}}}) {
    Json same = other;
    EXPECT_FALSE(settle_old_calls(same));
    EXPECT_EQ(same, other);
  }
}

TEST(OldCalls, TheAnswerIsTheNextMessage) {
  const std::string call = R"({"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}})";
  const std::string answer = R"({"role": "function", "name": "NAME", "content": "x"})";
  for (const std::string between :
       {R"({"role": "user", "content": "wait"})", R"({"role": "assistant", "content": ""})",
        R"({"role": "tool", "content": "y"})", R"({"role": "system", "content": ""})", "5"}) {
    Json body = body_of(("[" + call + ", " + between + ", " + answer + "]").c_str());
    const Json late = body["messages"][2];
    EXPECT_FALSE(settle_old_calls(body)) << between << ": the name is no error, since nobody waits for it";
    EXPECT_TRUE(body["messages"][0].contains("tool_calls")) << "power";
    EXPECT_EQ(body["messages"][2], late) << between;
  }
}

TEST(OldCalls, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([{"role": "assistant", "function_call": "f"}])", "messages[0].function_call"},
      {R"([{"role": "user", "function_call": {"name": "f", "arguments": "{}"}}])", "messages[0].function_call"},
      {R"([{"role": "assistant", "function_call": {"arguments": "{}"}}])", "messages[0].function_call.name"},
      {R"([{"role": "assistant", "function_call": {"name": "f"}}])", "messages[0].function_call.arguments"},
      {R"([{"role": "assistant", "function_call": {"name": "f", "arguments": 5}}])",
       "messages[0].function_call.arguments"},
      {R"([{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}, "tool_calls": [{}]}])",
       "messages[0].function_call"},
      {R"([{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, {"role": "function", "name": "g"}])",
       "messages[1].name"}};
  for (const auto& [messages, param] : cases) {
    Json body = body_of(messages);
    const auto error = settle_old_calls(body);
    ASSERT_TRUE(error) << messages;
    EXPECT_EQ(error->status, 400);
    EXPECT_EQ(error->param, param) << messages;
  }
}

}  // namespace
}  // namespace kvilt::server
