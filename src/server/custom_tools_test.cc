// Custom tools over the routes: what the model is told of them, what comes back, and what is refused.
#include "server/custom_tools.h"

#include <gtest/gtest.h>

#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

const std::string kPatch = "*** Begin Patch\n+\"caf\xC3\xA9\"\\\n*** End Patch";
constexpr const char* kTool = R"({"type": "custom", "custom": {"name": "apply_patch", "description": "Edits files."}})";
constexpr const char* kLark = R"({"type": "custom", "custom": {"name": "apply_patch", "format": {"type": "grammar",
    "grammar": {"syntax": "lark", "definition": "start: \"a\"+"}}}})";
constexpr const char* kFunction =
    R"({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})";

FakeOptions calling() {
  FakeOptions out;
  out.answers = FakeOptions::calls_tools();
  return out;
}

std::string call_of(const char* name, const Json& arguments) {
  return "<tool_call>\n" + Json{{"name", name}, {"arguments", arguments}}.dump() + "\n</tool_call>";
}

Json list_of(std::initializer_list<const char*> tools) {
  Json out = Json::array();
  for (const char* tool : tools) out.push_back(Json::parse(tool));
  return out;
}

Json saying(const std::string& answer, Json tools) {
  return {{"messages", {{{"role", "user"}, {"content", FakeEngine::kSay + answer}}}},
          {"max_tokens", 1000},
          {"temperature", 0},
          {"tools", std::move(tools)}};
}

class CustomTools : public testing::Test {
 protected:
  Json answered(const char* path, const Json& body) {
    const auto reply = running.post(path, dump(body));
    EXPECT_EQ(reply->status, 200) << reply->body;
    return Json::parse(reply->body);
  }
  Json refused(const Json& body, const char* path = "/v1/chat/completions") {
    const auto reply = running.post(path, dump(body));
    EXPECT_EQ(reply->status, 400) << reply->body;
    return error_of(reply);
  }

  LiveServer running{calling()};
};

TEST_F(CustomTools, CallsComeBackAsText) {
  const Json tools = list_of({kTool, kFunction});
  const std::string both = call_of("apply_patch", {{"input", kPatch}}) + "\n" + call_of("f", {{"input", "x"}});
  const Json choice = answered("/v1/chat/completions", saying(both, tools))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const Json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["type"], "custom");
  EXPECT_EQ(calls[0]["custom"], (Json{{"name", "apply_patch"}, {"input", kPatch}}));
  EXPECT_FALSE(calls[0].contains("function"));
  EXPECT_EQ(calls[1]["type"], "function") << "power: the same argument of a function is its JSON";
  EXPECT_EQ(calls[1]["function"]["arguments"], Json({{"input", "x"}}).dump());
  const Json other = answered("/v1/chat/completions", saying(call_of("apply_patch", {{"patch", "x"}}), tools));
  EXPECT_EQ(other["choices"][0]["message"]["tool_calls"][0]["custom"]["input"], R"({"patch":"x"})")
      << "what has no input is the input as it was written";
}

TEST_F(CustomTools, AStreamSaysTheSame) {
  Json body = saying("So:" + call_of("apply_patch", {{"input", kPatch}}), list_of({kTool}));
  body["stream"] = true;
  std::string input, name;
  int pieces = 0;
  for (const Json& event : events(running.post("/v1/chat/completions", dump(body))->body)) {
    for (const Json& piece : event["choices"][0]["delta"].value("tool_calls", Json::array())) {
      EXPECT_FALSE(piece.contains("function")) << piece;
      EXPECT_EQ(piece["index"], 0);
      name += piece["custom"].value("name", "");
      input += piece["custom"]["input"].get<std::string>();
      ++pieces;
    }
  }
  EXPECT_EQ(name, "apply_patch");
  EXPECT_EQ(input, kPatch);
  EXPECT_GT(pieces, 10);
}

TEST_F(CustomTools, ResponsesHaveItemsOfTheirOwn) {
  const Json tool = {{"type", "custom"}, {"name", "apply_patch"}, {"description", "Edits files."}};
  Json body = {{"input", FakeEngine::kSay + call_of("apply_patch", {{"input", kPatch}})},
               {"max_output_tokens", 1000},
               {"tools", {tool}}};
  const Json whole = answered("/v1/responses", body);
  EXPECT_EQ(whole["tools"][0], tool);
  ASSERT_EQ(whole["output"].size(), 1u);
  const Json& item = whole["output"][0];
  EXPECT_EQ(item["type"], "custom_tool_call");
  EXPECT_EQ(item["name"], "apply_patch");
  EXPECT_EQ(item["input"], kPatch);
  EXPECT_EQ(item["status"], "completed");
  EXPECT_FALSE(item.contains("arguments"));

  body["stream"] = true;
  std::string grown, done;
  Json last;
  for (const Json& event : events(running.post("/v1/responses", dump(body))->body)) {
    EXPECT_EQ(event["type"].get<std::string>().find("function_call"), std::string::npos);
    if (event["type"] == "response.custom_tool_call_input.delta") grown += event["delta"].get<std::string>();
    if (event["type"] == "response.custom_tool_call_input.done") done = event["input"];
    if (event["type"] == "response.output_item.done") last = event["item"];
  }
  EXPECT_EQ(grown, kPatch);
  EXPECT_EQ(done, kPatch);
  EXPECT_EQ(last["input"], kPatch);

  // A thread goes on from what is stored as from what is sent.
  const Json result = {{"type", "custom_tool_call_output"}, {"call_id", item["call_id"]}, {"output", "ok"}};
  answered("/v1/responses", {{"previous_response_id", whole["id"]}, {"tools", {tool}}, {"input", {result}}});
  const auto stored = running.engine->last_request().prompt.ids;
  const Json asked = {{"role", "user"}, {"content", body["input"]}};
  answered("/v1/responses", {{"tools", {tool}}, {"input", {asked, item, result}}});
  EXPECT_EQ(running.engine->last_request().prompt.ids, stored);
  const Json call = {
      {"id", item["call_id"]}, {"type", "custom"}, {"custom", {{"name", "apply_patch"}, {"input", kPatch}}}};
  Json chat = {{"tools", list_of({kTool})}, {"messages", {asked}}};
  chat["messages"].push_back({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}});
  chat["messages"].push_back({{"role", "tool"}, {"tool_call_id", item["call_id"]}, {"content", "ok"}});
  answered("/v1/chat/completions", chat);
  EXPECT_EQ(running.engine->last_request().prompt.ids, stored) << "the same prompt by both routes";
}

TEST_F(CustomTools, TheModelSeesAFunctionWithOneString) {
  Json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"tools", list_of({kTool})}};
  const Json input = {{"type", "string"}};
  const Json parameters = {{"type", "object"}, {"properties", {{"input", input}}}, {"required", {"input"}}};
  Json same = body;
  const Json function = {{"name", "apply_patch"}, {"description", "Edits files."}, {"parameters", parameters}};
  same["tools"] = Json::array({Json{{"type", "function"}, {"function", function}}});
  Json settled = body;
  ASSERT_FALSE(settle_custom_tools(settled));
  EXPECT_EQ(settled, same);
  settled["tools"] = list_of({kLark});
  ASSERT_FALSE(settle_custom_tools(settled));
  EXPECT_NE(settled.dump().find("start: "), std::string::npos)
      << "the model is told of the grammar: " << settled.dump();
}

// The fake engine's requests show what is enforced.
TEST_F(CustomTools, GrammarsAreEnforcedAndTextsWhereCallsAre) {
  const auto constraint = [&](Json tools, Json choice) {
    Json body = saying("a", std::move(tools));
    if (!choice.is_null()) body["tool_choice"] = std::move(choice);
    answered("/v1/chat/completions", body);
    return running.engine->last_request().constraint;
  };
  EXPECT_FALSE(constraint(list_of({kTool}), nullptr)) << "power: nothing is to be enforced";
  const Constraint free = constraint(list_of({kLark, kFunction}), nullptr);
  EXPECT_EQ(free.form, Constraint::Form::kCalls);
  EXPECT_TRUE(free.may_speak);
  ASSERT_EQ(free.tools.size(), 2u);
  EXPECT_EQ(free.tools[0].input_form, Constraint::Form::kGrammar);
  EXPECT_EQ(free.tools[0].input, "start: \"a\"+");
  EXPECT_EQ(free.tools[1], (Constraint::Tool{.name = "f", .parameters = ""}));
  const Json named = {{"type", "custom"}, {"custom", {{"name", "apply_patch"}}}};
  const Constraint forced = constraint(list_of({kFunction, kTool}), named);
  EXPECT_FALSE(forced.may_speak);
  ASSERT_EQ(forced.tools.size(), 1u);
  EXPECT_EQ(forced.tools[0].input_form, Constraint::Form::kNone);
  EXPECT_EQ(Json::parse(forced.tools[0].parameters)["required"], Json({"input"}));
  const Json regex = {{"type", "grammar"}, {"syntax", "regex"}, {"definition", "[a-z]+"}};
  answered("/v1/responses", {{"input", "FAKE_SAY a"},
                             {"tools", {{{"type", "custom"}, {"name", "x"}, {"format", regex}}}},
                             {"tool_choice", {{"type", "custom"}, {"name", "x"}}}});
  const Constraint last = running.engine->last_request().constraint;
  ASSERT_EQ(last.tools.size(), 1u);
  EXPECT_EQ(last.tools[0].input_form, Constraint::Form::kRegex);
  EXPECT_EQ(last.tools[0].input, "[a-z]+");
}

TEST_F(CustomTools, ErrorsNameTheField) {
  const std::pair<const char*, const char*> kBad[] = {
      {R"({"type": "custom"})", "tools[0].custom"},
      {R"({"type": "custom", "custom": {"name": 3}})", "tools[0].custom.name"},
      {R"({"type": "custom", "custom": {"name": ""}})", "tools[0].custom.name"},
      {R"({"type": "custom", "custom": {"name": "x", "description": 3}})", "tools[0].custom.description"},
      {R"({"type": "custom", "custom": {"name": "x", "format": 3}})", "tools[0].custom.format"},
      {R"({"type": "custom", "custom": {"name": "x", "format": {"type": "json"}}})", "tools[0].custom.format.type"},
      {R"({"type": "custom", "custom": {"name": "x", "format": {"type": "grammar", "definition": "start: A"}}})",
       "tools[0].custom.format.grammar"},
      {R"({"type": "custom", "custom": {"name": "x", "format": {"type": "grammar", "grammar": {"syntax": "gbnf",
          "definition": "x"}}}})",
       "tools[0].custom.format.grammar.syntax"},
      {R"({"type": "custom", "custom": {"name": "x", "format": {"type": "grammar", "grammar": {"syntax": "lark",
          "definition": ""}}}})",
       "tools[0].custom.format.grammar.definition"}};
  for (const auto& [tool, param] : kBad) {
    EXPECT_EQ(refused(saying("a", list_of({tool})))["param"], param);
    EXPECT_EQ(refused(saying("a", list_of({tool})), "/v1/chat/completions/input_tokens")["param"], param);
  }
  EXPECT_EQ(refused(saying("a", list_of({kTool, kTool})))["param"], "tools");
  Json call = saying("a", list_of({kTool}));
  call["messages"].push_back(
      {{"role", "assistant"}, {"tool_calls", {{{"type", "custom"}, {"custom", {{"name", "x"}}}}}}});
  EXPECT_EQ(refused(call)["param"], "messages[1].tool_calls[0].custom.input");
  const Json format = {{"type", "grammar"}, {"syntax", "lark"}, {"definition", 3}};
  const Json tool = {{"type", "custom"}, {"name", "x"}, {"format", format}};
  EXPECT_EQ(refused({{"input", "a"}, {"tools", {tool}}}, "/v1/responses")["param"], "tools[0].format.definition");
  const Json item = {{"type", "custom_tool_call"}, {"call_id", "c"}, {"name", "x"}};
  EXPECT_EQ(refused({{"input", {item}}}, "/v1/responses")["param"], "input[0].input");
}

}  // namespace
}  // namespace kvilt::server
