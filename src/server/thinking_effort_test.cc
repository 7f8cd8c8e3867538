#include "server/thinking_effort.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvilt::server {
namespace {

Json words_of(const Json& effort, Json body = Json::object()) {
  EXPECT_FALSE(set_effort(body, effort, "e"));
  return body.value("chat_template_kwargs", Json());
}

TEST(ThinkingEffort, AnEffortIsWhatTheTemplateIsTold) {
  EXPECT_EQ(words_of("high"), (Json{{"reasoning_effort", "high"}, {"enable_thinking", true}}));
  EXPECT_EQ(words_of("none"), (Json{{"reasoning_effort", "none"}, {"enable_thinking", false}}));
  const Json own = {{"enable_thinking", true}, {"reasoning_effort", "own"}};
  EXPECT_EQ(words_of("none", {{"chat_template_kwargs", own}}), own);
  Json body = Json::object();
  for (const Json& wrong : {Json("hard"), Json(3), Json::array()}) EXPECT_EQ(set_effort(body, wrong, "e")->param, "e");
  body["chat_template_kwargs"] = 5;
  EXPECT_EQ(set_effort(body, "low", "e")->param, "chat_template_kwargs");
}

Json template_words(const char* fields) {
  Json body = Json::parse(fields);
  const auto error = settle_thinking(body);
  EXPECT_FALSE(error) << fields << error->message;
  return body.value("chat_template_kwargs", Json());
}

TEST(ThinkingEffort, EveryApisWordsAreTheTemplates) {
  const Json on = {{"enable_thinking", true}}, off = {{"enable_thinking", false}};
  const Json low = {{"reasoning_effort", "low"}, {"enable_thinking", true}},
             none = {{"reasoning_effort", "none"}, {"enable_thinking", false}};
  for (const char* fields :
       {R"({"enable_thinking": true})", R"({"thinking": {"type": "enabled"}})", R"({"thinking": {"type": "adaptive"}})",
        R"({"reasoning": {"enabled": true, "exclude": true}})", R"({"reasoning": {"max_tokens": 2000}})",
        R"({"reasoning": {"enabled": true, "max_tokens": 0}})",
        R"({"enable_thinking": true, "thinking": {"type": "enabled", "budget_tokens": 9}, "reasoning": null})"})
    EXPECT_EQ(template_words(fields), on) << fields;
  for (const char* fields :
       {R"({"enable_thinking": false})", R"({"thinking": {"type": "disabled"}})",
        R"({"thinking": {"type": "disabled", "budget_tokens": 1024}})", R"({"reasoning": {"enabled": false}})",
        R"({"reasoning": {"max_tokens": 0}})", R"({"reasoning": {"enabled": false, "max_tokens": 2000}})"})
    EXPECT_EQ(template_words(fields), off) << fields;
  for (const char* fields :
       {R"({"reasoning_effort": "low"})", R"({"reasoning": {"effort": "low", "summary": "auto"}})",
        R"({"reasoning": {"effort": "low", "max_tokens": 2000}})",
        R"({"reasoning_effort": "low", "reasoning": {"effort": "low", "enabled": true}, "enable_thinking": true})"})
    EXPECT_EQ(template_words(fields), low) << fields;
  EXPECT_EQ(template_words(R"({"reasoning": {"effort": "none"}, "thinking": {"type": "disabled"}})"), none);
  for (const char* fields : {"{}", R"({"reasoning": {}, "thinking": null, "enable_thinking": null})",
                             R"({"reasoning": {"exclude": true, "max_tokens": null}})"})
    EXPECT_EQ(template_words(fields), Json()) << fields;
  EXPECT_EQ(template_words(R"({"enable_thinking": false, "chat_template_kwargs": {"enable_thinking": true}})"), on)
      << "what these say themselves holds";
}

TEST(ThinkingEffort, WhatIsWrongOrContradictsIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"enable_thinking": "yes"})", "enable_thinking"},
      {R"({"thinking": true})", "thinking"},
      {R"({"thinking": {}})", "thinking.type"},
      {R"({"thinking": {"type": "auto"}})", "thinking.type"},
      {R"({"reasoning": "high"})", "reasoning"},
      {R"({"reasoning": {"effort": "hard"}})", "reasoning.effort"},
      {R"({"reasoning": {"enabled": 1}})", "reasoning.enabled"},
      {R"({"reasoning": {"max_tokens": "2000"}})", "reasoning.max_tokens"},
      {R"({"reasoning": {"max_tokens": 2000}, "enable_thinking": false})", "reasoning.max_tokens"},
      {R"({"thinking": {"type": "enabled", "budget_tokens": "many"}})", "thinking.budget_tokens"},
      {R"({"reasoning_effort": 5})", "reasoning_effort"},
      {R"({"reasoning_effort": "low", "enable_thinking": false})", "enable_thinking"},
      {R"({"reasoning_effort": "none", "thinking": {"type": "enabled"}})", "thinking.type"},
      {R"({"enable_thinking": true, "thinking": {"type": "disabled"}})", "thinking.type"},
      {R"({"thinking": {"type": "disabled"}, "reasoning": {"enabled": true}})", "reasoning.enabled"},
      {R"({"reasoning_effort": "low", "reasoning": {"effort": "high"}})", "reasoning.effort"},
      {R"({"reasoning": {"effort": "high", "enabled": false}})", "reasoning.enabled"},
      {R"({"enable_thinking": true, "chat_template_kwargs": 5})", "chat_template_kwargs"}};
  for (const auto& [fields, param] : cases) {
    Json body = Json::parse(fields);
    const auto error = settle_thinking(body);
    ASSERT_TRUE(error) << fields;
    EXPECT_EQ(error->param, param) << fields;
    EXPECT_TRUE(error->message.starts_with(std::string(param) + ": ")) << error->message;
  }
}

}  // namespace
}  // namespace kvilt::server
