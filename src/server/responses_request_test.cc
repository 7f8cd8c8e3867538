#include "server/responses_request.h"

#include <gtest/gtest.h>

#include <vector>

#include "server/neutral_fields.h"
#include "server/thinking_effort.h"

namespace kvilt::server {
namespace {

ApiResult<ResponsesChat> taken(const char* body, const char* earlier = "[]") {
  Json json = Json::parse(body);
  auto thread = response_thread(json);
  if (!thread.ok()) return thread.error();
  return responses_to_chat(std::move(json), Json::parse(earlier), thread.value(), {.vocab = 1000, .context = 64});
}

Json as_chat(const char* body, const char* earlier = "[]") {
  const auto chat = taken(body, earlier);
  EXPECT_TRUE(chat.ok()) << chat.error().message;
  return chat.ok() ? chat.value().body : Json();
}

ApiError error_with(const char* body) {
  const auto chat = taken(body);
  EXPECT_FALSE(chat.ok()) << body;
  return chat.ok() ? ApiError{} : chat.error();
}

TEST(ResponsesRequest, AConversationIsWhatChatWouldSend) {
  const Json chat = as_chat(R"({"model": "m", "instructions": "Be brief.", "max_output_tokens": 7, "temperature": 0,
      "parallel_tool_calls": false, "tool_choice": {"type": "function", "name": "look"},
      "tools": [{"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"},
                 "strict": false}],
      "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
      "reasoning": {"effort": "none", "summary": "auto"}, "kvilt": {"policy": "prefix"}, "cache_salt": "s",
      "input": [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "input_text", "text": "a", "cache_control": {"type": "ephemeral"}},
                                     {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{\"x\": 1}"},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]}]})");
  EXPECT_EQ(chat, Json::parse(R"({"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                                     {"type": "text", "text": "b"}]},
        {"reasoning_content": "hm", "role": "assistant", "content": "I look.", "tool_calls": [
          {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"x\": 1}"}},
          {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"}],
      "model": "m", "temperature": 0, "parallel_tool_calls": false, "cache_salt": "s", "kvilt": {"policy": "prefix"},
      "max_tokens": 7, "chat_template_kwargs": {"reasoning_effort": "none", "enable_thinking": false},
      "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
      "tools": [{"type": "function", "function": {"name": "look", "description": "Looks.",
                                                   "parameters": {"type": "object"}}}],
      "tool_choice": {"type": "function", "function": {"name": "look"}}})"));
  EXPECT_EQ(as_chat(R"({"input": "hi"})")["messages"], Json::parse(R"([{"role": "user", "content": "hi"}])"));
}

TEST(ResponsesRequest, FieldsOfOtherServersAreReadOrRefused) {
  std::vector<const char*> names = {"regex",
                                    "ebnf",
                                    "grammar",
                                    "json_schema",
                                    "guided_grammar",
                                    "allowed_token_ids",
                                    "min_tokens",
                                    "use_beam_search",
                                    "include_stop_str_in_output",
                                    "return_token_ids",
                                    "web_search_options",
                                    "best_of",
                                    "functions",
                                    "audio",
                                    "modalities"};
  names.insert(names.end(), neutral_names().begin(), neutral_names().end());
  EXPECT_GT(names.size(), 40u) << "power";
  for (const char* name : names) {
    Json body = {{"input", "hi"}, {"max_output_tokens", 5}};
    ASSERT_TRUE(parse_chat(as_chat(body.dump().c_str()), {}).ok()) << "power";
    body[name] = 7777;
    const auto refused = parse_chat(as_chat(body.dump().c_str()), {});
    ASSERT_FALSE(refused.ok()) << name;
    EXPECT_EQ(refused.error().param, name);
  }
}

TEST(ResponsesRequest, WordsForThinkingReachTheTemplate) {
  for (const char* off :
       {R"("reasoning": {"enabled": false})", R"("reasoning": {"max_tokens": 0})", R"("enable_thinking": false)",
        R"("thinking": {"type": "disabled"})", R"("reasoning_effort": "none")"}) {
    Json chat = as_chat((std::string(R"({"input": "hi", )") + off + "}").c_str());
    EXPECT_FALSE(settle_thinking(chat)) << off;
    ASSERT_TRUE(chat.contains("chat_template_kwargs")) << off;
    EXPECT_EQ(chat["chat_template_kwargs"]["enable_thinking"], false) << off;
  }
  Json chat = as_chat(R"({"input": "hi"})");
  EXPECT_FALSE(settle_thinking(chat));
  EXPECT_FALSE(chat.contains("chat_template_kwargs")) << "power";
  for (const char* both : {R"("reasoning": {"effort": "high", "enabled": false})",
                           R"("reasoning": {"effort": "high"}, "enable_thinking": false)",
                           R"("reasoning": {"effort": "high"}, "thinking": {"type": "disabled"})",
                           R"("reasoning": {"effort": "high"}, "reasoning_effort": "low")"})
    EXPECT_EQ(error_with((std::string(R"({"input": "hi", )") + both + "}").c_str()).status, 400) << both;
}

TEST(ResponsesRequest, WhatCameEarlierStandsBehindTheInstructions) {
  const Json chat = as_chat(R"({"instructions": "i", "input": "and now?", "previous_response_id": "resp_1"})",
                            R"([{"type": "message", "role": "user", "content": "hi"},
                                {"type": "message", "role": "assistant", "status": "completed",
                                 "content": [{"type": "output_text", "text": "ho", "annotations": []}]}])");
  EXPECT_EQ(chat["messages"], Json::parse(R"([{"role": "system", "content": "i"}, {"role": "user", "content": "hi"},
                            {"role": "assistant", "content": "ho"}, {"role": "user", "content": "and now?"}])"));
}

TEST(ResponsesRequest, ItemsAreKeptAsTheyCameWithIds) {
  const auto kept = taken(R"({"input": [{"role": "user", "content": "hi"}, {"type": "function_call_output",
      "id": "mine", "call_id": "c", "output": "o"}], "metadata": {"a": "b"}})");
  ASSERT_TRUE(kept.ok());
  const Json& items = kept.value().input;
  EXPECT_EQ(items[0]["type"], "message");
  EXPECT_TRUE(items[0]["id"].get<std::string>().starts_with("msg_"));
  EXPECT_EQ(items[0]["content"], "hi");
  EXPECT_EQ(items[1]["id"], "mine");
  EXPECT_EQ(kept.value().repeated["metadata"], (Json{{"a", "b"}}));
  EXPECT_TRUE(taken(R"({"input": "hi", "store": false})").value().input.is_null());
}

TEST(ResponsesRequest, WhatIsNotHonouredIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"input": "x", "background": true})", "background"},
      {R"({"input": "x", "conversation": "c"})", "conversation"},
      {R"({"input": "x", "prompt": {"id": "p"}})", "prompt"},
      {R"({"input": "x", "truncation": "auto"})", "truncation"},
      {R"({"input": "x", "top_logprobs": 2})", "top_logprobs"},
      {R"({"input": "x", "include": ["message.output_text.logprobs"]})", "include[0]"},
      {R"({"input": "x", "text": {"verbosity": "low"}})", "text.verbosity"},
      {R"({"input": "x", "tools": [{"type": "web_search"}]})", "tools[0].type"},
      {R"({"input": "x", "tool_choice": {"type": "file_search"}})", "tool_choice.type"},
      {R"({"input": "x", "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}})",
       "tool_choice.tools[0].type"},
      {R"({"input": [{"type": "item_reference", "id": "x"}]})", "input[0]"},
      {R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})", "input[0].content[0]"}};
  for (const auto& [body, param] : cases) {
    const ApiError error = error_with(body);
    EXPECT_EQ(error.param, param);
    EXPECT_EQ(error.code, "unsupported") << body;
  }
  for (const char* fine : {R"({"input": "x", "background": false, "truncation": "disabled", "top_logprobs": 0,
                              "include": ["reasoning.encrypted_content"], "text": {"verbosity": "medium"}})"})
    EXPECT_TRUE(taken(fine).ok()) << "power";
}

TEST(ResponsesRequest, WrongTypesNameTheirPath) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([])", "the body must be a JSON object, not a list"},
      {R"({})", "input: is required"},
      {R"({"input": []})", "input: must not be empty"},
      {R"({"input": 5})", "input: must be a string or a list, not a number"},
      {R"({"input": [5]})", "input[0]: must be an object, not a number"},
      {R"({"input": [{"type": 5}]})", "input[0].type: must be a string, not a number"},
      {R"({"input": [{"role": "user"}]})", "input[0].content: is required"},
      {R"({"input": [{"role": "wizard", "content": "x"}]})",
       "input[0].role: must be \"user\", \"assistant\", \"system\" or \"developer\""},
      {R"({"input": [{"type": "function_call", "call_id": "c", "name": "n"}]})", "input[0].arguments: is required"},
      {R"({"input": [{"type": "function_call_output", "call_id": "c"}]})", "input[0].output: is required"},
      {R"({"input": [{"type": "reasoning", "content": "x"}]})", "input[0].content: must be a list, not a string"},
      {R"({"input": "x", "instructions": []})", "instructions: must be a string, not a list"},
      {R"({"input": "x", "store": 1})", "store: must be true or false, not a number"},
      {R"({"input": "x", "metadata": {"a": 1}})", "metadata.a: must be a string, not a number"},
      {R"({"input": "x", "tools": {}})", "tools: must be a list, not an object"},
      {R"({"input": "x", "reasoning": "high"})", "reasoning: must be an object, not a string"}};
  for (const auto& [body, message] : cases) EXPECT_EQ(error_with(body).message, message);
}

TEST(ResponsesRequest, ChatsWordsBecomeItsOwn) {
  const auto chat = taken(R"({"instructions": "i", "input": [{"role": "user", "content": "x"}]})");
  const auto own = [&](const char* message, const char* param) {
    ApiError error{400, message, param, ""};
    chat.value().in_own_paths(error);
    return error.message + "|" + error.param;
  };
  EXPECT_EQ(own("max_tokens: must be", "max_tokens"), "max_output_tokens: must be|max_output_tokens");
  EXPECT_EQ(own("messages[1].content: no", "messages[1].content"), "input[0].content: no|input[0].content");
  EXPECT_EQ(own("messages[0].role: no", "messages[0].role"), "instructions.role: no|instructions.role");
  EXPECT_EQ(own("response_format: no", "response_format"), "text.format: no|text.format");
  EXPECT_EQ(own("tools[2].function.name: no", "tools[2].function.name"), "tools[2].name: no|tools[2].name");
  EXPECT_EQ(own("tool_choice.allowed_tools.mode: no", "tool_choice.allowed_tools.mode"),
            "tool_choice.mode: no|tool_choice.mode");
  EXPECT_EQ(own("max_tokens_x: no", "temperature"), "max_tokens_x: no|temperature");
}

TEST(ResponsesRequest, AllowedToolsAreChats) {
  const auto out = taken(R"({"input": "x", "tools": [{"type": "function", "name": "f", "parameters": {}},
                             {"type": "function", "name": "g", "parameters": {}}, {"type": "custom", "name": "c"}],
                             "tool_choice": {"type": "allowed_tools", "mode": "required",
                                             "tools": [{"type": "function", "name": "g"}, {"type": "custom", "name": "c"}]}})");
  ASSERT_TRUE(out.ok()) << out.error().message;
  EXPECT_EQ(out.value().body["tool_choice"].dump(),
            R"({"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":)"
            R"({"name":"g"}},{"type":"custom","custom":{"name":"c"}}]}})");
}

constexpr const char* kSpaced = R"("tools": [{"type": "function", "name": "f"},
    {"type": "namespace", "name": "team", "description": "Helpers.", "tools": [
      {"type": "function", "name": "ask", "description": "Asks one.", "parameters": {"type": "object"}, "strict": true},
      {"type": "custom", "name": "tell", "description": "Tells one."}]},
    {"type": "namespace", "name": "mcp__files__", "description": "Files.", "tools": [
      {"type": "function", "name": "read", "defer_loading": false}]}])";

TEST(ResponsesRequest, ToolsOfANamespaceHaveItInTheirName) {
  const auto out = taken((R"({"input": [{"role": "user", "content": "x"},
      {"type": "function_call", "call_id": "c1", "namespace": "team", "name": "ask", "arguments": "{}"},
      {"type": "custom_tool_call", "call_id": "c2", "namespace": "team", "name": "tell", "input": "hi"}],
      "tool_choice": {"type": "function", "namespace": "mcp__files__", "name": "read"}, )" +
                          std::string(kSpaced) + "}")
                             .c_str());
  ASSERT_TRUE(out.ok()) << out.error().message;
  EXPECT_EQ(out.value().body["tools"], Json::parse(R"([
      {"type": "function", "function": {"name": "f"}},
      {"type": "function", "function": {"name": "team__ask", "description": "Helpers.\n\nAsks one.",
                                        "parameters": {"type": "object"}, "strict": true}},
      {"type": "custom", "custom": {"name": "team__tell", "description": "Tells one."}},
      {"type": "function", "function": {"name": "mcp__files__read", "description": "Files."}}])"));
  EXPECT_EQ(out.value().body["messages"][1]["tool_calls"], Json::parse(R"([
      {"id": "c1", "type": "function", "function": {"name": "team__ask", "arguments": "{}"}},
      {"id": "c2", "type": "custom", "custom": {"name": "team__tell", "input": "hi"}}])"));
  EXPECT_EQ(out.value().body["tool_choice"],
            Json::parse(R"({"type": "function", "function": {"name": "mcp__files__read"}})"));
  ApiError error{400, "tools[2].custom.format.grammar.syntax: no", "tools[3].function.parameters", ""};
  out.value().in_own_paths(error);
  EXPECT_EQ(error.message + "|" + error.param, "tools[1].tools[1].format.syntax: no|tools[2].tools[0].parameters");
}

TEST(ResponsesRequest, WrongNamespacesNameTheirPath) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type": "namespace", "tools": []})", "tools[0].name: is required"},
      {R"({"type": "namespace", "name": "", "tools": []})", "tools[0].name: must have 1 to 64 bytes"},
      {R"({"type": "namespace", "name": "n"})", "tools[0].tools: is required and must be a list"},
      {R"({"type": "namespace", "name": "n", "description": 5, "tools": []})",
       "tools[0].description: must be a string, not a number"},
      {R"({"type": "namespace", "name": "n", "tools": [5]})", "tools[0].tools[0]: must be an object, not a number"},
      {R"({"type": "namespace", "name": "n", "tools": [{"type": "function"}]})", "tools[0].tools[0].name: is required"},
      {R"({"type": "function", "name": "n__f"}, {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]})",
       "tools[1].tools[0].name: another tool is 'n__f' to the model too"}};
  for (const auto& [tools, message] : cases)
    EXPECT_EQ(error_with((R"({"input": "x", "tools": [)" + std::string(tools) + "]}").c_str()).message, message);
  for (const char* inner : {"namespace", "web_search"}) {
    const std::string tool =
        R"({"type": "namespace", "name": "n", "tools": [{"type": ")" + std::string(inner) + "\"}]}";
    EXPECT_EQ(error_with((R"({"input": "x", "tools": [)" + tool + "]}").c_str()).param, "tools[0].tools[0].type");
  }
  EXPECT_EQ(error_with(R"({"input": [{"type": "function_call", "call_id": "c", "namespace": 5, "name": "f",
                          "arguments": "{}"}]})")
                .message,
            "input[0].namespace: must be a string, not a number");
  EXPECT_TRUE(
      taken(R"({"input": "x", "tools": [{"type": "function", "name": "f"}, {"type": "function", "name": "f"}]})").ok())
      << "power: equal names outside are chat's to judge";
}

TEST(ResponsesRequest, ManySmallItemsAreRefusedBeforeTheyAreRendered) {
  Json body = {{"input", Json::array()}};
  for (int i = 0; i < 100; ++i) body["input"].push_back({{"role", "user"}, {"content", "a"}});
  const std::string text = dump(body);
  EXPECT_EQ(error_with(text.c_str()).code, "context_length_exceeded");
}

}  // namespace
}  // namespace kvilt::server
