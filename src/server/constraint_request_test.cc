#include "server/constraint_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/openai_request.h"

namespace kvilt::server {
namespace {

using Form = Constraint::Form;

ApiResult<ChatRequest> parsed(const std::string& fields) {
  return parse_chat(Json::parse(R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}"), {});
}

ConstraintRequest asked(const std::string& fields) {
  auto chat = parsed(fields);
  EXPECT_TRUE(chat.ok()) << fields << ": " << (chat.ok() ? "" : chat.error().message);
  return chat.ok() ? chat.value().generation.constraint : ConstraintRequest();
}

std::string wrong(const std::string& fields) {
  auto chat = parsed(fields);
  return chat.ok() ? "" : chat.error().param;
}

constexpr const char* kTools =
    R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
                 {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}, "strict": true}}])";
constexpr const char* kLooseTools =
    R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])";

TEST(ConstraintRequest, FormatsAndVllmsWords) {
  const auto is = [](const char* fields, Form form, const char* text, const char* field) {
    const ConstraintRequest out = asked(fields);
    EXPECT_EQ(out.constraint.form, form) << fields;
    EXPECT_EQ(out.constraint.text, text) << fields;
    EXPECT_EQ(out.field, field) << fields;
    EXPECT_TRUE(out.constraint.reasons);
  };
  is(R"("response_format": {"type": "text"})", Form::kNone, "", "");
  is(R"("response_format": {"type": "json_object"})", Form::kJson, "", "response_format");
  is(R"("response_format": {"type": "json_object", "schema": {"type": "null"}})", Form::kSchema, R"({"type":"null"})",
     "response_format.schema");
  is(R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": {"enum": [1]}}})",
     Form::kSchema, R"({"enum":[1]})", "response_format.json_schema.schema");
  is(R"("guided_json": {"type": "null"})", Form::kSchema, R"({"type":"null"})", "guided_json");
  is(R"("guided_json": "{\"type\": \"null\"}")", Form::kSchema, R"({"type": "null"})", "guided_json");
  is(R"("guided_regex": "a+")", Form::kRegex, "a+", "guided_regex");
  is(R"("guided_grammar": "root ::= \"a\"")", Form::kGrammar, "root ::= \"a\"", "guided_grammar");
  is(R"("structured_outputs": {"json_object": true, "regex": null})", Form::kJson, "",
     "structured_outputs.json_object");
  is(R"("structured_outputs": {"regex": "a"}, "guided_json": null)", Form::kRegex, "a", "structured_outputs.regex");
  is(R"("guided_json": false, "guided_regex": "")", Form::kNone, "", "");
  is(R"("regex": "a+")", Form::kRegex, "a+", "regex");
  is(R"("ebnf": "root ::= \"a\"")", Form::kGrammar, "root ::= \"a\"", "ebnf");
  EXPECT_EQ(asked(R"("guided_choice": ["a", "b"])").constraint.choices, (std::vector<std::string>{"a", "b"}));
  const auto text = parse_completion(Json::parse(R"({"prompt": "hi", "guided_choice": ["a"]})"), {});
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text.value().generation.constraint.constraint.form, Form::kChoice);
  EXPECT_FALSE(text.value().generation.constraint.constraint.reasons) << "a text completion is no chat";
}

TEST(ConstraintRequest, TheSameMayBeSaidTwice) {
  const ConstraintRequest grammar =
      asked(R"("guided_grammar": "root ::= \"a\"", "structured_outputs": {"grammar": "root ::= \"a\""})");
  EXPECT_EQ(grammar.constraint.form, Form::kGrammar);
  EXPECT_EQ(grammar.constraint.text, "root ::= \"a\"");
  EXPECT_EQ(grammar.field, "guided_grammar");
  const ConstraintRequest choice =
      asked(R"("guided_choice": ["a", "b"], "structured_outputs": {"choice": ["a", "b"]})");
  EXPECT_EQ(choice.constraint.choices, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(wrong(R"("guided_choice": ["a", "b"], "structured_outputs": {"choice": ["a"]})"),
            "structured_outputs.choice");
  EXPECT_EQ(wrong(R"("guided_regex": "a", "guided_grammar": "a")"), "guided_grammar");
}

TEST(ConstraintRequest, ForcedTools) {
  const ConstraintRequest all = asked(std::string(kTools) + R"(, "tool_choice": "required")");
  EXPECT_EQ(all.constraint.form, Form::kCalls);
  EXPECT_EQ(all.constraint.tools,
            (std::vector<Constraint::Tool>{{"f", R"({"type":"object"})"}, {"g", R"({"type":"object"})"}}));
  EXPECT_FALSE(all.constraint.one_call);
  EXPECT_FALSE(all.constraint.may_speak);
  EXPECT_TRUE(
      asked(std::string(kTools) + R"(, "tool_choice": "required", "parallel_tool_calls": false)").constraint.one_call);
  const ConstraintRequest one =
      asked(std::string(kTools) + R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})");
  EXPECT_EQ(one.constraint.tools.size(), 1u);
  EXPECT_TRUE(one.constraint.one_call);
  EXPECT_EQ(one.field, "tool_choice");
  const ConstraintRequest both =
      asked(std::string(kTools) + R"(, "tool_choice": "required", "response_format": {"type": "json_object"})");
  EXPECT_EQ(both.constraint.form, Form::kCalls);
}

TEST(ConstraintRequest, ToolsThatAreNotForced) {
  EXPECT_FALSE(asked(kLooseTools).constraint);
  EXPECT_FALSE(asked(std::string(kTools) + R"(, "tool_choice": "none")").constraint);
  const ConstraintRequest strict = asked(kTools);
  EXPECT_EQ(strict.constraint.form, Form::kCalls);
  EXPECT_TRUE(strict.constraint.may_speak);
  EXPECT_EQ(strict.constraint.tools, (std::vector<Constraint::Tool>{{"f", ""}, {"g", R"({"type":"object"})"}}));
  const ConstraintRequest format = asked(std::string(kLooseTools) + R"(, "response_format": {"type": "json_object"})");
  EXPECT_EQ(format.constraint.form, Form::kJson);
  EXPECT_EQ(format.constraint.tools.size(), 1u);
}

std::string allowed(const char* mode, const std::string& tools) {
  return std::string(kTools) + R"(, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": )" + mode +
         R"(, "tools": )" + tools + "}}";
}
constexpr const char* kOnlyF = R"([{"type": "function", "function": {"name": "f"}}])";

TEST(ConstraintRequest, SomeOfTheToolsMayBeCalled) {
  const ConstraintRequest may = asked(allowed(R"("auto")", kOnlyF));
  EXPECT_EQ(may.constraint.form, Form::kCalls);
  EXPECT_TRUE(may.constraint.may_speak);
  EXPECT_EQ(may.constraint.tools, (std::vector<Constraint::Tool>{{"f", ""}}));
  EXPECT_EQ(may.field, "tool_choice");
  const ConstraintRequest must = asked(allowed(R"("required")", kOnlyF));
  EXPECT_FALSE(must.constraint.may_speak);
  EXPECT_FALSE(must.constraint.one_call) << "as with a function's name it would be";
  EXPECT_EQ(must.constraint.tools, (std::vector<Constraint::Tool>{{"f", R"({"type":"object"})"}}));
  const ConstraintRequest format =
      asked(allowed(R"("auto")", kOnlyF) + R"(, "response_format": {"type": "json_object"})");
  EXPECT_EQ(format.constraint.form, Form::kJson);
  EXPECT_EQ(format.constraint.tools.size(), 1u);
  const auto chat = parsed(allowed(R"("auto")", kOnlyF));
  ASSERT_TRUE(chat.ok());
  EXPECT_TRUE(chat.value().tools) << "the prompt has all of them";
}

TEST(ConstraintRequest, WrongOnesNameTheirPath) {
  const std::pair<std::string, const char*> kCases[] = {
      {R"("response_format": 5)", "response_format"},
      {R"("response_format": {})", "response_format.type"},
      {R"("response_format": {"type": "json_schema"})", "response_format.json_schema"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n"}})",
       "response_format.json_schema.schema"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": [1]}})",
       "response_format.json_schema.schema"},
      {R"("guided_json": 5)", "guided_json"},
      {R"("guided_regex": {})", "guided_regex"},
      {R"("guided_choice": "a")", "guided_choice"},
      {R"("guided_choice": [])", "guided_choice"},
      {R"("guided_choice": ["a", 5])", "guided_choice[1]"},
      {R"("guided_choice": [""])", "guided_choice[0]"},
      {R"("structured_outputs": "x")", "structured_outputs"},
      {R"("structured_outputs": {"xml": "x"})", "structured_outputs.xml"},
      {R"("structured_outputs": {"regex": "a", "json_object": true})", "structured_outputs.json_object"},
      {R"("guided_regex": "a", "response_format": {"type": "json_object"})", "guided_regex"},
      {R"("guided_regex": ")" + std::string(200'000, 'a') + "\"", "guided_regex"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("tool_choice": "required", "tools": [])", "tool_choice"},
      {R"("tool_choice": "required", "tools": ["f"])", "tools[0].function.name"},
      {R"("tool_choice": "required", "tools": [{"type": "function", "function": {"name": ""}}])",
       "tools[0].function.name"},
      {std::string(kTools) + R"(, "tool_choice": "sometimes")", "tool_choice"},
      {std::string(kTools) + R"(, "tool_choice": {"type": "function"})", "tool_choice"},
      {std::string(kTools) + R"(, "tool_choice": {"type": "function", "function": {"name": "h"}})", "tool_choice"},
      {std::string(kTools) + R"(, "tool_choice": {"type": "allowed_tools"})", "tool_choice.allowed_tools"},
      {allowed("null", kOnlyF), "tool_choice.allowed_tools.mode"},
      {allowed(R"("auto")", "[]"), "tool_choice.allowed_tools.tools"},
      {allowed(R"("auto")", R"([{"type": "mcp", "server_label": "x"}])"), "tool_choice.allowed_tools.tools[0]"},
      {allowed(R"("auto")", R"([{"type": "function", "function": {"name": "h"}}])"), "tool_choice"},
  };
  for (const auto& [fields, path] : kCases) EXPECT_EQ(wrong(fields), path) << fields.substr(0, 200);
}

}  // namespace
}  // namespace kvilt::server
