#include "server/anthropic_request.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kvilt::server {
namespace {

constexpr RequestLimits kSmallContext{.vocab = 1000, .context = 64};

OpenAiChat converted(const Json& body) {
  auto chat = to_openai_chat(body, kSmallContext, MessagesUse::kAnswer);
  EXPECT_TRUE(chat.ok()) << body << ": " << (chat.ok() ? "" : chat.error().message);
  return chat.ok() ? std::move(chat.value()) : OpenAiChat{};
}

ApiError refused(const Json& body, MessagesUse use = MessagesUse::kAnswer) {
  auto chat = to_openai_chat(body, kSmallContext, use);
  EXPECT_FALSE(chat.ok()) << body;
  return chat.ok() ? ApiError{} : chat.error();
}

Json with(const char* messages, const char* more = "") {
  return Json::parse(std::string(R"({"max_tokens": 5, "messages": )") + messages + more + "}");
}

TEST(AnthropicRequest, EachBlockBecomesWhatOpenAisClientsSend) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([{"role": "user", "content": "hi"}])", R"([{"role": "user", "content": "hi"}])"},
      {R"([{"role": "user", "content": [{"type": "text", "text": "hi"}]}])", R"([{"role": "user", "content": "hi"}])"},
      {R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control":
           {"type": "ephemeral", "ttl": "1h"}}]}])",
       R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control":
           {"type": "ephemeral", "ttl": "1h"}}]}])"},
      {R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm",
           "signature": "s"}, {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "I look."}, {"type":
           "tool_use", "id": "t1", "name": "look", "input": {"at": [1, "\"}"]}}]}, {"role": "user", "content": [{"type":
           "tool_result", "tool_use_id": "t1", "content": "seen"}, {"type": "text", "text": "and?"}]}])",
       R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "I look.", "reasoning_content": "hm",
           "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "look", "arguments":
           "{\"at\":[1,\"\\\"}\"]}"}}]}, {"role": "tool", "tool_call_id": "t1", "content": "seen"}, {"role": "user",
           "content": "and?"}])"},
      {R"([{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}, {"role": "user",
           "content": [{"type": "text", "text": "before"}, {"type": "tool_result", "tool_use_id": "a", "is_error": true},
           {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "x"}, {"type": "text",
           "text": "y"}], "cache_control": {"type": "ephemeral"}}]}])",
       R"([{"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f",
           "arguments": "{}"}}]}, {"role": "user", "content": "before"}, {"role": "tool", "tool_call_id": "a",
           "content": ""}, {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "x"}, {"type":
           "text", "text": "y", "cache_control": {"type": "ephemeral"}}]}])"},
      {R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name":
           "f", "input": {}, "cache_control": {"type": "ephemeral"}}]}, {"role": "user", "content": "x"}])",
       R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type":
           "function", "function": {"name": "f", "arguments": "{}"}, "cache_control": {"type": "ephemeral"}}]}, {"role": "user",
           "content": "x"}])"},
      {R"([{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, {"role": "user", "content":
           [{"type": "tool_result", "tool_use_id": "a", "content": "x", "cache_control": {"type": "ephemeral"}}]}])",
       R"([{"role": "assistant", "content": ""}, {"role": "tool", "tool_call_id": "a", "content": [{"type": "text",
           "text": "x", "cache_control": {"type": "ephemeral"}}]}])"},
  };
  for (const auto& [theirs, ours] : cases) EXPECT_EQ(converted(with(theirs)).body["messages"], Json::parse(ours));
}

TEST(AnthropicRequest, TurnsOfOneSpeakerAreOneTurn) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([{"role": "user", "content": "a"}, {"role": "user", "content": ""}, {"role": "user", "content": [{"type":
           "text", "text": "b", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "c"}]}])",
       R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control":
           {"type": "ephemeral"}}, {"type": "text", "text": "c"}]}])"},
      {R"([{"role": "user", "content": ""}, {"role": "user", "content": "a"}])",
       R"([{"role": "user", "content": "a"}])"},
      {R"([{"role": "assistant", "content": [{"type": "thinking", "thinking": "h"}, {"type": "tool_use", "id": "t", "name":
           "f", "input": {}}]}, {"role": "assistant", "content": [{"type": "thinking", "thinking": "m"}, {"type":
           "tool_use", "id": "u", "name": "g", "input": {}}]}, {"role": "user", "content": [{"type": "tool_result",
           "tool_use_id": "t"}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u"}]}, {"role":
           "user", "content": "x"}, {"role": "user", "content": "y"}])",
       R"([{"role": "assistant", "content": null, "reasoning_content": "h\nm", "tool_calls": [{"id": "t", "type":
           "function", "function": {"name": "f", "arguments": "{}"}}, {"id": "u", "type": "function", "function": {"name":
           "g", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "t", "content": ""}, {"role": "tool",
           "tool_call_id": "u", "content": ""}, {"role": "user", "content": [{"type": "text", "text": "x"}, {"type":
           "text", "text": "y"}]}])"},
      {R"([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name":
           "f", "input": {}}]}, {"role": "user", "content": "x"}])",
       R"([{"role": "assistant", "content": "a", "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f",
           "arguments": "{}"}}]}, {"role": "user", "content": "x"}])"},
      {R"([{"role": "system", "content": "a"}, {"role": "user", "content": "q"}, {"role": "system", "content": [{"type":
           "text", "text": "b"}]}, {"role": "user", "content": "r"}])",
       R"([{"role": "system", "content": "a"}, {"role": "user", "content": "q"}, {"role": "system", "content": "b"},
           {"role": "user", "content": "r"}])"},
  };
  for (const auto& [theirs, ours] : cases) {
    const OpenAiChat chat = converted(with(theirs));
    EXPECT_EQ(chat.body["messages"], Json::parse(ours));
    EXPECT_EQ(chat.sources.size(), chat.body["messages"].size());
  }
}

TEST(AnthropicRequest, FieldsOfOtherServersAreReadOrRefused) {
  const OpenAiChat chat = converted(
      with(R"([{"role": "user", "content": "hi"}])", R"(, "seed": 7, "ignore_eos": true, "min_p": 0.5, "n": 3)"));
  const auto parsed = parse_chat(chat.body, kSmallContext);
  ASSERT_TRUE(parsed.ok());
  const Generation& generation = parsed.value().generation;
  EXPECT_EQ(generation.sampling.seed, 7u);
  EXPECT_TRUE(generation.sampling.ignore_eos);
  EXPECT_EQ(generation.sampling.min_p, 0.5f);
  EXPECT_EQ(generation.choices, 1) << "the API has one answer";
  for (const char* name : {"response_format",
                           "structured_outputs",
                           "guided_json",
                           "guided_regex",
                           "guided_choice",
                           "guided_grammar",
                           "regex",
                           "ebnf",
                           "grammar",
                           "json_schema",
                           "allowed_token_ids",
                           "min_tokens",
                           "bad_words",
                           "typical_p",
                           "use_beam_search",
                           "skip_special_tokens",
                           "chat_template",
                           "include_stop_str_in_output",
                           "repeat_penalty",
                           "reasoning_format",
                           "include_reasoning",
                           "separate_reasoning",
                           "thinking_budget_tokens",
                           "thinking_token_budget",
                           "guided_whitespace_pattern",
                           "best_of",
                           "functions",
                           "audio",
                           "modalities",
                           "stop"}) {
    Json body = with(R"([{"role": "user", "content": "hi"}])");
    ASSERT_TRUE(parse_chat(converted(body).body, kSmallContext).ok()) << "power";
    body[name] = 7777;
    const auto refusal = parse_chat(converted(body).body, kSmallContext);
    ASSERT_FALSE(refusal.ok()) << name;
    EXPECT_EQ(refusal.error().param, name);
  }
}

TEST(AnthropicRequest, WordsOfChatsAreRead) {
  const auto body_with = [](const char* more) { return with(R"([{"role": "user", "content": "hi"}])", more); };
  const OpenAiChat thinks =
      converted(body_with(R"(, "enable_thinking": true, "reasoning_effort": "high", "stop": "x")"));
  EXPECT_EQ(thinks.body["chat_template_kwargs"], Json({{"enable_thinking", true}}));
  EXPECT_TRUE(thinks.shows_thinking) << "it was asked for";
  EXPECT_EQ(thinks.body["reasoning_effort"], "high");
  EXPECT_EQ(thinks.body["stop"], "x");
  const OpenAiChat quiet = converted(body_with(""));
  EXPECT_EQ(quiet.body["chat_template_kwargs"], Json({{"enable_thinking", false}})) << "power";
  EXPECT_FALSE(quiet.shows_thinking);
  EXPECT_EQ(refused(body_with(R"(, "stop": "x", "stop_sequences": ["y"])")).param, "stop");
  EXPECT_EQ(refused(body_with(R"(, "enable_thinking": "yes")")).param, "enable_thinking");
  EXPECT_EQ(refused(body_with(R"(, "enable_thinking": true, "thinking": {"type": "disabled"})")).param,
            "thinking.type");
  EXPECT_EQ(refused(body_with(R"(, "reasoning_effort": "none", "thinking": {"type": "enabled"})")).status, 400);
  EXPECT_EQ(converted(body_with(R"(, "stop": 17)")).in_own_paths("stop: must"), "stop: must");
  EXPECT_EQ(converted(body_with(R"(, "stop_sequences": ["x"])")).in_own_paths("stop[0]: x"), "stop_sequences[0]: x");
}

TEST(AnthropicRequest, WhatAnAnswerMustBeBecomesOpenAis) {
  const char* tools =
      R"(, "tools": [{"name": "f", "input_schema": {"type": "object"}, "strict": true}], "tool_choice": )";
  const auto choice = [&](const char* given) {
    return converted(with(R"([{"role": "user", "content": "hi"}])", (std::string(tools) + given).c_str())).body;
  };
  const Json any = choice(R"({"type": "any"})");
  EXPECT_EQ(any["tool_choice"], "required");
  EXPECT_EQ(any["tools"][0]["function"]["strict"], true);
  EXPECT_EQ(choice(R"({"type": "tool", "name": "f"})")["tool_choice"],
            Json::parse(R"({"type": "function", "function": {"name": "f"}})"));
  for (const char* field : {R"(, "output_format": {"type": "json_schema", "schema": {"type": "null"}})",
                            R"(, "output_config": {"format": {"type": "json_schema", "schema": {"type": "null"}}})"}) {
    const OpenAiChat chat = converted(with(R"([{"role": "user", "content": "hi"}])", field));
    const auto parsed = parse_chat(chat.body, kSmallContext);
    ASSERT_TRUE(parsed.ok());
    const ConstraintRequest& asked = parsed.value().generation.constraint;
    EXPECT_EQ(asked.constraint.form, Constraint::Form::kSchema);
    EXPECT_EQ(asked.constraint.text, R"({"type":"null"})");
    EXPECT_TRUE(chat.in_own_paths(asked.field + ": no").starts_with("output_"));
  }
}

TEST(AnthropicRequest, FieldsBecomeOpenAis) {
  const OpenAiChat chat =
      converted(with(R"([{"role": "user", "content": "hi"}])", R"(, "model": "m", "system": "be brief",
      "temperature": 0.5, "top_p": 0.25, "top_k": 7, "stream": true, "stop_sequences": ["a"], "cache_salt": "s",
      "metadata": {"user_id": 5}, "thinking": {"type": "disabled"}, "kvilt": {"policy": "naive"}, "unknown": 1,
      "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}, "tools": [{"name": "f", "description": "d",
      "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}, {"type": "custom", "name": "g",
      "input_schema": {}}], "cache_control": {"ttl": "1h"}, "mcp_servers": [], "output_config": {"effort": "low"})"));
  EXPECT_EQ(chat.body, Json::parse(R"({"messages": [{"role": "system", "content": "be brief"}, {"role": "user",
      "content": "hi"}], "model": "m", "max_tokens": 5, "temperature": 0.5, "top_p": 0.25, "top_k": 7, "stream": true,
      "cache_salt": "s", "kvilt": {"policy": "naive"}, "stop": ["a"],
      "chat_template_kwargs": {"enable_thinking": false, "reasoning_effort": "low"}, "tools": [{"type": "function",
      "function": {"name":
      "f", "description": "d", "parameters": {"type": "object"}}, "cache_control": {"type": "ephemeral"}}, {"type":
      "function", "function": {"name": "g", "parameters": {}}}], "tool_choice": "auto", "parallel_tool_calls": false,
      "cache_control": {"ttl": "1h"}})"));
  const auto generation = parse_chat(chat.body, kSmallContext);
  ASSERT_TRUE(generation.ok());
  EXPECT_EQ(generation.value().generation.sampling.stop, std::vector<std::string>{"a"});
  const char* blocks = R"(, "system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control":
      {"type": "ephemeral"}}])";
  EXPECT_EQ(converted(with(R"([{"role": "user", "content": "hi"}])", blocks)).body["messages"][0],
            Json::parse(R"({"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b",
                "cache_control": {"type": "ephemeral"}}]})"));
  for (const char* none : {R"(, "system": "")", R"(, "system": [])", R"(, "system": null)"})
    EXPECT_EQ(converted(with(R"([{"role": "user", "content": "hi"}])", none)).body["messages"].size(), 1u) << none;
}

// One conversation, written for both APIs as it is made.
class BothForms {
 public:
  explicit BothForms(uint32_t seed) : random_(seed) {
    if (one_of(2)) {
      anthropic["system"] = text();
      openai["messages"].push_back({{"role", "system"}, {"content", anthropic["system"]}});
    }
    for (int turns = one_of(6); turns >= 0; --turns) {
      ask();
      if (turns > 0) answer();
    }
  }
  Json anthropic = {{"max_tokens", 1}, {"messages", Json::array()}};
  Json openai = {{"messages", Json::array()}};

 private:
  int one_of(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  std::string text() {
    const char* words[] = {"red", "\"", "{\"a\": 1}", "caf\xc3\xa9", "\n", "</s>", "<|im_end|>", "\\", "0", "]"};
    std::string out = "w";
    for (int n = one_of(5); n > 0; --n) out += words[one_of(10)];
    return out;
  }
  // A string, or several parts of which some are marked.
  Json content() {
    if (one_of(2)) return text();
    Json parts = Json::array();
    for (int n = 2 + one_of(3); n > 0; --n) {
      parts.push_back({{"type", "text"}, {"text", text()}});
      if (one_of(2)) parts.back()["cache_control"] = {{"type", "ephemeral"}};
    }
    return parts;
  }
  static Json blocks(const Json& content) {
    return content.is_array() ? content : Json::array({{{"type", "text"}, {"text", content}}});
  }
  // Results of the calls before it, then a question.
  void ask() {
    Json list = Json::array();
    for (const std::string& id : std::exchange(open_calls_, {})) {
      const Json result = content();
      list.push_back({{"type", "tool_result"}, {"tool_use_id", id}, {"content", result}});
      openai["messages"].push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", result}});
    }
    const Json question = content();
    openai["messages"].push_back({{"role", "user"}, {"content", question}});
    const bool plain = list.empty() && one_of(2);
    for (const Json& block : blocks(question)) list.push_back(block);
    anthropic["messages"].push_back({{"role", "user"}, {"content", plain ? question : list}});
  }
  void answer() {
    const Json said = content();
    Json list = blocks(said);
    Json message = {{"role", "assistant"}, {"content", said}};
    for (int n = one_of(3); n > 0; --n) {
      const std::string id = "call" + std::to_string(++calls_), name = "f" + text();
      const Json input = {{text(), text()}, {"n", {1, nullptr, 2.5}}};
      list.push_back({{"type", "tool_use"}, {"id", id}, {"name", name}, {"input", input}});
      message["tool_calls"].push_back(
          {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", input.dump()}}}});
      open_calls_.push_back(id);
    }
    anthropic["messages"].push_back({{"role", "assistant"}, {"content", std::move(list)}});
    openai["messages"].push_back(std::move(message));
  }

  std::mt19937 random_;
  int calls_ = 0;
  std::vector<std::string> open_calls_;
};

TEST(AnthropicRequest, AConversationIsTheSameByBothRoutes) {
  int marked = 0, calling = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const BothForms forms(seed);
    const OpenAiChat chat = converted(forms.anthropic);
    ASSERT_EQ(chat.body["messages"], forms.openai["messages"]) << seed << ": " << forms.anthropic;
    ASSERT_EQ(chat.sources.size(), chat.body["messages"].size());
    EXPECT_NE(chat.body["messages"], BothForms(seed + 1000).openai["messages"]) << "power: others differ";
    marked += forms.openai.dump().find("cache_control") != std::string::npos;
    calling += forms.openai.dump().find("tool_calls") != std::string::npos;
  }
  EXPECT_GT(marked, 50);
  EXPECT_GT(calling, 50);
}

constexpr const char* kHi = R"([{"role": "user", "content": "hi"}])";

TEST(AnthropicRequest, WrongFieldsNameTheirPath) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(, "system": 5)", "system"},
      {R"(, "system": [5])", "system[0]"},
      {R"(, "system": [{"type": "text"}])", "system[0].text"},
      {R"(, "system": [{"type": "image"}])", "system[0]"},
      {R"(, "stop_sequences": "a")", "stop_sequences"},
      {R"(, "thinking": true)", "thinking"},
      {R"(, "thinking": {"type": 1})", "thinking.type"},
      {R"(, "tools": {})", "tools"},
      {R"(, "tools": ["f"])", "tools[0]"},
      {R"(, "tools": [{"input_schema": {}}])", "tools[0].name"},
      {R"(, "tools": [{"name": "f"}])", "tools[0].input_schema"},
      {R"(, "tools": [{"name": "f", "input_schema": []}])", "tools[0].input_schema"},
      {R"(, "tools": [{"name": "f", "input_schema": {}, "description": 1}])", "tools[0].description"},
      {R"(, "tools": [{"name": "f", "input_schema": {}}, {"type": "web_search_20250305", "name": "w"}])",
       "tools[1].type"},
      {R"(, "tools": [{"name": "f", "input_schema": {}, "strict": 1}])", "tools[0].strict"},
      {R"(, "tools": [{"name": "f", "input_schema": {}, "cache_control": 1}])", "tools[0].cache_control"},
      {R"(, "tools": [{"name": "f", "input_schema": {}, "cache_control": {"type": "ephemeral", "ttl": "7d"}}])",
       "tools[0].cache_control.ttl"},
      {R"(, "tools": [{"name": "f", "input_schema": {}, "cache_control": {"type": "x"}}])",
       "tools[0].cache_control.type"},
      {R"(, "cache_control": {"ttl": 5})", "cache_control.ttl"},
      {R"(, "cache_control": [])", "cache_control"},
      {R"(, "tool_choice": "auto")", "tool_choice"},
      {R"(, "tool_choice": {})", "tool_choice.type"},
      {R"(, "tool_choice": {"type": "required"})", "tool_choice.type"},
      {R"(, "tool_choice": {"type": "tool"})", "tool_choice.name"},
      {R"(, "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1})", "tool_choice.disable_parallel_tool_use"},
      {R"(, "mcp_servers": [{}])", "mcp_servers"},
      {R"(, "container": "c")", "container"},
      {R"(, "thinking": {"type": "of"})", "thinking.type"},
      {R"(, "output_config": {"effort": "huge"})", "output_config.effort"},
      {R"(, "context_management": [])", "context_management"},
      {R"(, "context_management": {"edits": {}})", "context_management.edits"},
      {R"(, "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]})", "context_management.edits[0]"},
      {R"(, "context_management": {"edits": [{"type": "clear_thinking_20251015"}]})", "context_management.edits[0]"},
      {R"(, "output_format": {"type": "json_schema"})", "output_format.schema"},
      {R"(, "output_format": {"type": "xml"})", "output_format.type"},
      {R"(, "output_config": 1)", "output_config"},
      {R"(, "output_config": {"format": {}})", "output_config.format.type"},
      {R"(, "output_config": {"format": {"type": "json_schema", "schema": {}}}, "output_format": {"type": "json_schema",
          "schema": {}})",
       "output_config.format"},
  };
  for (const auto& [fields, path] : cases) {
    const ApiError error = refused(with(kHi, fields));
    EXPECT_EQ(error.status, 400) << fields;
    EXPECT_EQ(error.param, path) << fields;
    EXPECT_TRUE(error.message.starts_with(std::string(path) + ": ")) << error.message;
  }
  EXPECT_EQ(refused(Json::parse(std::string(R"({"messages": )") + kHi + "}")).param, "max_tokens");
  EXPECT_TRUE(
      to_openai_chat(Json::parse(std::string(R"({"messages": )") + kHi + "}"), kSmallContext, MessagesUse::kCount)
          .ok());
  EXPECT_EQ(refused(Json::parse("[1]")).status, 400);
}

TEST(AnthropicRequest, WrongMessagesNameTheirPath) {
  const std::pair<const char*, const char*> cases[] = {
      {"null", "messages"},
      {"{}", "messages"},
      {"[]", "messages"},
      {"[1]", "messages[0]"},
      {R"([{"content": "x"}])", "messages[0].role"},
      {R"([{"role": 1, "content": "x"}])", "messages[0].role"},
      {R"([{"role": "developer", "content": "x"}])", "messages[0].role"},
      {R"([{"role": "system", "content": [{"type": "image"}]}])", "messages[0].content[0]"},
      {R"([{"role": "user"}])", "messages[0].content"},
      {R"([{"role": "user", "content": 7}])", "messages[0].content"},
      {R"([{"role": "user", "content": []}])", "messages[0].content"},
      {R"([{"role": "user", "content": ["x"]}])", "messages[0].content[0]"},
      {R"([{"role": "user", "content": [{"text": "x"}]}])", "messages[0].content[0].type"},
      {R"([{"role": "user", "content": [{"type": "text", "text": {}}]}])", "messages[0].content[0].text"},
      {R"([{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": true}]}])",
       "messages[0].content[0].cache_control"},
      {R"([{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "x", "cache_control":
          {"ttl": "7d"}}]}])",
       "messages[1].content[0].cache_control.ttl"},
      {R"([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x", "cache_control":
          {"ttl": "7d"}}]}])",
       "messages[0].content[0].cache_control.ttl"},
      {R"([{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}, "cache_control":
          {"ttl": "7d"}}]}, {"role": "user", "content": "x"}])",
       "messages[0].content[0].cache_control.ttl"},
      {R"([{"role": "user", "content": [{"type": "image", "source": {}}]}])", "messages[0].content[0]"},
      {R"([{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}])",
       "messages[0].content[0]"},
      {R"([{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}])",
       "messages[0].content[0].tool_use_id"},
      {R"([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": 1}]}])",
       "messages[0].content[0].content"},
      {R"([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}]}])",
       "messages[0].content[0].content[0]"},
      {R"([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "is_error": "no"}]}])",
       "messages[0].content[0].is_error"},
      {R"([{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}])",
       "messages[0].content[0].input"},
      {R"([{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": "{}"}]}])",
       "messages[0].content[0].input"},
      {R"([{"role": "assistant", "content": [{"type": "tool_use", "id": 1, "name": "f", "input": {}}]}])",
       "messages[0].content[0].id"},
      {R"([{"role": "assistant", "content": [{"type": "thinking", "thinking": 1}]}])",
       "messages[0].content[0].thinking"},
      {R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}])", "messages[1]"},
      {R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "text", "text": "I call"},
          {"type": "tool_use", "id": "a", "name": "f", "input": {}}]}])",
       "messages[1]"},
  };
  for (const auto& [messages, path] : cases) {
    const ApiError error = refused(with(messages));
    EXPECT_EQ(error.param, path) << messages;
    EXPECT_TRUE(error.message.starts_with(std::string(path) + ": ")) << error.message;
    EXPECT_EQ(error.message.substr(0, error.message.find(": ")), path) << error.message;
  }
}

// Every value of a body that has everything, replaced by every other type: an answer or a 400 that names a path.
TEST(AnthropicRequest, AnyTypeAnywhereIsAnErrorWithAPath) {
  const Json whole =
      with(R"([{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "h"}, {"type": "text", "text": "b"}, {"type":
      "tool_use", "id": "t", "name": "f", "input": {"x": 1}}]}, {"role": "user", "content": [{"type": "tool_result",
      "tool_use_id": "t", "is_error": false, "content": [{"type": "text", "text": "c"}]}, {"type": "text", "text":
      "d"}]}])",
           R"(, "model": "m", "system": [{"type": "text", "text": "s"}], "temperature": 1, "top_p": 1, "top_k": 2,
      "stream": false, "stop_sequences": ["x"], "cache_salt": "s", "kvilt": {"policy": "naive"}, "metadata": {},
      "thinking": {"type": "disabled"}, "tool_choice": {"type": "auto"}, "tools": [{"name": "f", "description": "d",
      "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral", "ttl": "1h"}}], "cache_control": {})");
  ASSERT_TRUE(parse_chat(converted(whole).body, kSmallContext).ok());
  int wrong = 0, fine = 0;
  const Json leaves = whole.flatten();
  for (const auto& [pointer, value] : leaves.items()) {
    for (Json::json_pointer at(pointer); !at.empty(); at.pop_back()) {
      for (const char* other : {"null", "7", "-1.5", "true", "\"x\"", "[]", "[[]]", "{}", R"({"a": 1})"}) {
        Json body = whole;
        body[at] = Json::parse(other);
        auto chat = to_openai_chat(body, kSmallContext, MessagesUse::kAnswer);
        std::optional<ApiError> error;
        if (!chat.ok()) {
          error = chat.error();
        } else if (auto parsed = parse_chat(chat.value().body, kSmallContext); !parsed.ok()) {
          error = parsed.error();
          error->message = chat.value().in_own_paths(error->message);
        }
        ++(error ? wrong : fine);
        if (!error) continue;
        EXPECT_EQ(error->status, 400);
        const std::string path = error->message.substr(0, error->message.find(": "));
        const std::string top = path.substr(0, path.find_first_of(".["));
        EXPECT_TRUE(whole.contains(top)) << error->message;
        EXPECT_EQ("/" + top, at.to_string().substr(0, at.to_string().find('/', 1))) << error->message;
      }
    }
  }
  EXPECT_GT(wrong, 300);
  EXPECT_GT(fine, 50);
}

// A model that may think or not is told, not only left unheard.
TEST(AnthropicRequest, WhetherToThinkIsTold) {
  const auto words = [](const std::string& fields) {
    return converted(with(R"([{"role": "user", "content": "q"}])", fields.c_str()))
        .body.value("chat_template_kwargs", Json());
  };
  const std::string off = R"(, "thinking": {"type": "disabled"})";
  EXPECT_EQ(words(off), (Json{{"enable_thinking", false}}));
  EXPECT_EQ(words(off + R"(, "chat_template_kwargs": {"enable_thinking": true})"), (Json{{"enable_thinking", true}}));
  EXPECT_EQ(words(R"(, "thinking": {"type": "enabled", "budget_tokens": 1024})"), (Json{{"enable_thinking", true}}));
  EXPECT_EQ(words(R"(, "thinking": {"type": "adaptive"})"), (Json{{"enable_thinking", true}}));
  for (const char* none : {"", R"(, "thinking": null)"})
    EXPECT_EQ(words(none), (Json{{"enable_thinking", false}})) << "who does not ask for it has none";
  EXPECT_EQ(words(R"(, "chat_template_kwargs": {"enable_thinking": true})"), (Json{{"enable_thinking", true}}));
  const std::string on = R"(, "thinking": {"type": "adaptive"})";
  const auto effort = [&](const char* word) {
    return words(on + R"(, "output_config": {"effort": ")" + word + "\"}")["reasoning_effort"];
  };
  EXPECT_EQ(effort("high"), "high");
  EXPECT_EQ(effort("max"), "xhigh");
  EXPECT_EQ(words(R"(, "output_config": {"effort": "high"})"),
            (Json{{"enable_thinking", false}, {"reasoning_effort", "high"}}))
      << "how much, not whether";
  EXPECT_EQ(words(on + R"(, "output_config": {"effort": "low"}, "chat_template_kwargs": {"reasoning_effort": "mine"})"),
            (Json{{"reasoning_effort", "mine"}, {"enable_thinking", true}}));
}

// Claude Code sends this in every request.
TEST(AnthropicRequest, AnEditThatKeepsAllIsNone) {
  const char* keeps = R"(, "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})";
  const char* hi = R"([{"role": "user", "content": "hi"}])";
  EXPECT_EQ(converted(with(hi, keeps)).body, converted(with(hi)).body);
  EXPECT_EQ(converted(with(hi, R"(, "context_management": {"edits": []}, "container": null)")).body,
            converted(with(hi)).body);
}

TEST(AnthropicRequest, ErrorsOfTheNewBodyGetTheClientsPaths) {
  const OpenAiChat chat = converted(with(R"([{"role": "user", "content": "q"}, {"role": "assistant", "content":
      [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}, {"role": "user", "content": [{"type": "tool_result",
      "tool_use_id": "a"}, {"type": "text", "text": "x"}]}])",
                                         R"(, "system": "s")"));
  EXPECT_EQ(chat.in_own_paths("messages[0].role: no"), "system.role: no");
  EXPECT_EQ(chat.in_own_paths("messages[1].content: no"), "messages[0].content: no");
  EXPECT_EQ(chat.in_own_paths("messages[3].role: no"), "messages[2].content[0].role: no");
  EXPECT_EQ(chat.in_own_paths("messages[4].role: no"), "messages[2].role: no");
  EXPECT_EQ(chat.in_own_paths("stop[3]: no"), "stop_sequences[3]: no");
  for (const char* same :
       {"messages[5]: no", "messages[", "messages[x]: no", "messages: no", "stop", "stopped: no", ""})
    EXPECT_EQ(chat.in_own_paths(same), same);
}

TEST(AnthropicRequest, NoMoreMessagesAreBuiltThanTheContextHolds) {
  const auto results = [](int n) {
    Json block = {{"type", "tool_result"}, {"tool_use_id", "a"}, {"content", "x"}};
    return Json{{"max_tokens", 1},
                {"messages", Json::array({{{"role", "user"}, {"content", Json(static_cast<size_t>(n), block)}}})}};
  };
  EXPECT_EQ(converted(results(64)).body["messages"].size(), 64u) << "power";
  const ApiError error = refused(results(65));
  EXPECT_EQ(error.param, "messages");
  EXPECT_EQ(error.code, "context_length_exceeded");
}

}  // namespace
}  // namespace kvilt::server
