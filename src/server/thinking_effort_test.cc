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

}  // namespace
}  // namespace kvilt::server
