// Calls that are forced, on every template whose way to write them is known: random texts of the grammar, as a model
// without any sense would write them, are read as calls of the tools with arguments that fit their schemas.
// Power: texts that no grammar holds are no calls, and another family's grammar gives none that this one's reader knows.
#include <gtest/gtest.h>

#include <random>
#include <regex>

#include "engine/answer_grammar.h"
#include "grammar/compiler.h"
#include "grammar/schema_validator_for_test.h"
#include "grammar/vocabulary_for_test.h"
#include "template_families.h"

namespace kvilt {
namespace {

using Form = CallSyntax::Form;

const Json& tool_list() {
  static const Json kTools = Json::parse(R"([
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
      "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
      "unit": {"type": "string", "enum": ["C", "F"]}}, "required": ["city", "unit"]}}},
    {"type": "function", "function": {"name": "note_down", "parameters": {"type": "object", "properties": {
      "year": {"enum": ["2024", "true"]}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
      "required": ["year", "note"]}}},
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {
      "terms": {"type": "array", "items": {"$ref": "#/$defs/term"}, "minItems": 1, "maxItems": 3}},
      "required": ["terms"], "$defs": {"term": {"type": "object", "properties": {"v": {"type": "number"}},
      "required": ["v"]}}}}}])");
  return kTools;
}

Constraint forced(bool one_call) {
  Constraint out;
  out.form = Constraint::Form::kCalls;
  out.one_call = one_call;
  out.reasons = true;
  for (const Json& tool : tool_list())
    out.tools.push_back({tool["function"]["name"], tool["function"]["parameters"].dump()});
  return out;
}

server::AnswerReading reading_with(const AnswerSyntax& syntax, bool in_reasoning) {
  return {.syntax = syntax, .calls = true, .in_reasoning = in_reasoning, .tools = server::tool_shapes(tool_list())};
}

// How many of the answer's calls are of a tool and fit it; -1 for other text, or broken ones.
int good_calls(const Answer& answer) {
  if (answer.broken) return -1;
  int good = 0;
  for (const Call& call : answer.calls) {
    for (const Json& tool : tool_list()) {
      const Json& function = tool["function"];
      if (function["name"] == call.name && SchemaValidator(function["parameters"]).fits(call.arguments)) ++good;
    }
  }
  return good == static_cast<int>(answer.calls.size()) ? good : -1;
}

// What a vocabulary of bytes can write and the test's reader of JSON does not read: numbers such as 3E636.
bool unreadable(const std::string& text) {
  static const std::regex kHuge("[0-9][eE][+]?[0-9]{3}");
  return std::regex_search(text, kHuge);
}

// What ends thoughts and values in tags: chance would not write it.
std::vector<std::string> words_of(const AnswerSyntax& syntax) {
  std::vector<std::string> out;
  for (const std::string* word : {&syntax.reasoning_end, &syntax.calls.value_end, &syntax.calls.between}) {
    if (!word->empty()) out.push_back(*word);
  }
  return out;
}

class ForcedCalls : public testing::Test {
 protected:
  std::shared_ptr<const Grammar> grammar_of(const Constraint& constraint, const AnswerSyntax& syntax, bool reasons) {
    const auto part = answer_grammar(constraint, syntax, reasons);
    EXPECT_TRUE(part.ok()) << (part.ok() ? "" : part.error().message);
    if (!part.ok()) return nullptr;
    auto made = compiler->compile(*part);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return made.ok() ? *made : nullptr;
  }

  static bool takes(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
    GrammarMatcher matcher(grammar);
    return take_text(matcher, text) && matcher.may_end();
  }

  const JsonVocabulary v{};
  const std::unique_ptr<GrammarCompiler> compiler = v.compiler();
  std::mt19937 random{11};
  const std::map<std::string, Family> families = families_in("tests/data/templates");
};

TEST_F(ForcedCalls, AreReadBackOnEveryTemplateThatIsUnderstood) {
  int understood = 0;
  for (const auto& [name, family] : families) {
    if (family.syntax.calls.form == Form::kNone) continue;
    ++understood;
    for (const bool one_call : {false, true}) {
      for (const bool opens : {false, true}) {
        if (opens && family.syntax.reasoning_end.empty()) continue;
        const auto grammar = grammar_of(forced(one_call), family.syntax, opens);
        ASSERT_TRUE(grammar) << name;
        int whole = 0, most = 0;
        for (int i = 0; i < 60; ++i) {
          const auto text = random_text(v, grammar, random, words_of(family.syntax));
          if (!text || unreadable(*text)) continue;
          ++whole;
          const Answer answer = answer_of(read(reading_with(family.syntax, opens), *text));
          const int good = good_calls(answer);
          EXPECT_GE(good, 1) << name << "\n" << *text << "\nleft " << answer.content;
          if (one_call) {
            EXPECT_LE(good, 1) << name << "\n" << *text;
          }
          most = std::max(most, good);
        }
        EXPECT_GT(whole, 5) << name;
        if (!one_call && !family.syntax.calls.between.empty() && !opens) {
          EXPECT_GT(most, 1) << name << ": several";
        }
      }
    }
  }
  EXPECT_GE(understood, 6);
}

TEST_F(ForcedCalls, WithoutAGrammarThereAreNone) {
  const Family& family = families.at("qwen2.5");
  int calls = 0;
  for (int i = 0; i < 50; ++i) {
    std::string text;
    for (int n = 0; n < 60; ++n) text += v.tokenizer->token_bytes(static_cast<int32_t>(random() % 280));
    calls += static_cast<int>(answer_of(read(reading_with(family.syntax, false), text)).calls.size());
  }
  EXPECT_EQ(calls, 0);
  const auto other = grammar_of(forced(true), families.at("Qwen3-Coder").syntax, false);
  const auto text = random_text(v, other, random, words_of(families.at("Qwen3-Coder").syntax));
  ASSERT_TRUE(text);
  EXPECT_LE(good_calls(answer_of(read(reading_with(family.syntax, false), *text))), 0);
}

// A custom tool's input is a text of its grammar, in the JSON of one family as between the tags of another.
TEST_F(ForcedCalls, InputsAreTextsOfTheirGrammar) {
  Constraint custom;
  custom.form = Constraint::Form::kCalls;
  custom.one_call = true;
  custom.tools = {{.name = "patch",
                   .parameters = "",
                   .input_form = Constraint::Form::kGrammar,
                   .input = "start: (\"+\" /[a-z\"\\\\\\t]+/ \"\\n\")+ \"end\""},
                  {.name = "pick", .parameters = "", .input_form = Constraint::Form::kRegex, .input = "[A-C]{2}"}};
  const std::regex patch("(\\+[a-z\"\\\\\\t]+\\n)+end"), pick("[A-C]{2}");
  const Json input = Json::parse(R"({"properties": {"input": {"type": "string"}}})");
  Json tools = Json::array();
  for (const Constraint::Tool& tool : custom.tools)
    tools.push_back({{"type", "function"}, {"function", {{"name", tool.name}, {"parameters", input}}}});
  int understood = 0, escaped = 0;
  for (const auto& [name, family] : families) {
    if (family.syntax.calls.form == Form::kNone && !family.syntax.messages.calls()) continue;
    ++understood;
    custom.reasons = family.syntax.messages.known();
    const auto grammar = grammar_of(custom, family.syntax, false);
    ASSERT_TRUE(grammar) << name;
    int whole = 0;
    for (int i = 0; i < 60; ++i) {
      const auto text = random_text(v, grammar, random, words_of(family.syntax));
      if (!text || unreadable(*text)) continue;
      ++whole;
      const Answer answer =
          answer_of(read({.syntax = family.syntax, .calls = true, .tools = server::tool_shapes(tools)}, *text));
      ASSERT_FALSE(answer.broken) << name << "\n" << *text;
      ASSERT_EQ(answer.calls.size(), 1u) << name << "\n" << *text;
      const Call& call = answer.calls[0];
      ASSERT_EQ(call.arguments.size(), 1u) << name << "\n" << *text;
      const auto said = call.arguments["input"].get<std::string>();
      EXPECT_TRUE(std::regex_match(said, call.name == "patch" ? patch : pick)) << name << "\n" << *text;
      escaped += family.syntax.calls.form != Form::kTagged && said.find_first_of("\"\\\t\n") != std::string::npos;
    }
    EXPECT_GT(whole, 5) << name;
  }
  EXPECT_GE(understood, 7);
  EXPECT_GT(escaped, 20) << "power";
  custom.tools[0].input = "start: missing";
  const auto wrong = answer_grammar(custom, families.at("qwen2.5").syntax, false);
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find("tool 'patch': the Lark grammar, line 1"), std::string::npos);
}

// Strict tools that nobody forces: text may come, and what begins like a call is one.
TEST_F(ForcedCalls, StrictToolsMaySpeakFirst) {
  Constraint strict = forced(false);
  strict.may_speak = true;
  strict.reasons = false;
  const AnswerSyntax& syntax = families.at("qwen2.5").syntax;
  const auto grammar = grammar_of(strict, syntax, false);
  ASSERT_TRUE(grammar);
  EXPECT_TRUE(takes(grammar, "It rains."));
  EXPECT_TRUE(takes(grammar,
                    "Let me see. <tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"a\", \"unit\": "
                    "\"C\"}}\n</tool_call>"));
  EXPECT_FALSE(takes(grammar, "<tool_call>\n{\"name\": \"nobody\""));
  EXPECT_FALSE(takes(grammar, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": 5"));
}

// Whatever the reader takes for a call is held, in other space and without the words before it too.
TEST_F(ForcedCalls, StrictToolsAreHeldHoweverTheyAreWritten) {
  const std::string fits = R"({"name": "get_weather", "arguments": {"city": "a", "unit": "C"}})";
  const std::string wrong = R"({"name": "get_weather", "arguments": {"city": 5}})";
  const std::string other = R"({"name": "nobody", "arguments": {}})";
  const auto opens = [this](const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
    GrammarMatcher matcher(grammar);
    return take_text(matcher, text);
  };
  for (const bool one_call : {false, true}) {
    Constraint strict = forced(one_call);
    strict.may_speak = true;
    strict.reasons = false;
    const AnswerSyntax& qwen = families.at("qwen2.5").syntax;
    const auto grammar = grammar_of(strict, qwen, false);
    ASSERT_TRUE(grammar);
    for (const std::string space : {"", " ", "\n", "\n\n"}) {
      for (const std::string& begin : {std::string(), "<tool_call>" + space}) {
        const std::string end = begin.empty() ? "" : "\n</tool_call>";
        const std::string call = (begin.empty() ? space : begin) + fits + end;
        EXPECT_TRUE(takes(grammar, call)) << call;
        EXPECT_EQ(good_calls(answer_of(read(reading_with(qwen, false), call))), 1) << call;
        for (const std::string& bad : {wrong, other})
          EXPECT_FALSE(opens(grammar, (begin.empty() ? space : begin) + bad)) << begin << space << bad;
      }
    }
    const std::string marked = "<tool_call>\n" + fits + "\n</tool_call>";
    EXPECT_EQ(takes(grammar, marked + "\nand " + marked), !one_call);
    EXPECT_FALSE(opens(grammar, "A <tool_call>" + wrong));
    EXPECT_TRUE(takes(grammar, ""));
    for (const char* text : {"It rains {so}.", "<b>It</b>", "<tool>?", "<<tool!", "<tool_<tool_calls> it", "`{`"})
      EXPECT_TRUE(takes(grammar, text)) << text;
    EXPECT_TRUE(takes(grammar, "<to. " + marked));
    for (const char* text : {" It rains.", "\n\n\n\n\tIt", "\r\n\n", " "}) EXPECT_TRUE(takes(grammar, text)) << text;
    EXPECT_TRUE(takes(grammar, "\n\n\n\n " + marked));
    EXPECT_FALSE(opens(grammar, "\n\n\n\n " + wrong));
    for (const std::string& text : {"<<tool_call>" + wrong, "<tool<tool_call>" + wrong})
      EXPECT_FALSE(opens(grammar, text)) << text;
    const AnswerSyntax& tags = families.at("Qwen3-Coder").syntax;
    const auto tagged = grammar_of(strict, tags, false);
    ASSERT_TRUE(tagged);
    for (const std::string space : {"", " ", "\n"}) {
      const std::string head = "Well. <tool_call>" + space + "<function=add>\n";
      EXPECT_TRUE(takes(tagged, head + "<parameter=terms>\n[{\"v\": 1}]\n</parameter>\n</function>\n</tool_call>"))
          << head;
      EXPECT_FALSE(opens(tagged, head + "<parameter=terms>\n5")) << head;
    }
  }
}

// Calls that begin with no word of their own (Llama 3.1's): an answer that begins with a brace is one, and no other does.
TEST_F(ForcedCalls, StrictToolsThatAreObjects) {
  AnswerSyntax syntax = families.at("qwen2.5").syntax;
  syntax.calls.begin = syntax.calls.between = syntax.calls.end = "";
  syntax.calls.arguments_key = "parameters";
  Constraint strict = forced(false);
  strict.may_speak = true;
  strict.reasons = false;
  const auto grammar = grammar_of(strict, syntax, false);
  ASSERT_TRUE(grammar);
  const std::string head = "{\"name\": \"get_weather\", \"parameters\": ";
  const std::string call = head + "{\"city\": \"a\", \"unit\": \"C\"}}";
  EXPECT_TRUE(takes(grammar, "It rains {so they say}."));
  EXPECT_TRUE(takes(grammar, call));
  EXPECT_EQ(good_calls(answer_of(read(reading_with(syntax, false), call))), 1);
  EXPECT_FALSE(takes(grammar, head + "{\"city\": 5}}"));
  EXPECT_FALSE(takes(grammar, "{\"answer\": 1}"));
  syntax.calls.form = Form::kNamed;  // a name may be any word
  EXPECT_FALSE(answer_grammar(strict, syntax, false).ok());
}

// Between tags each parameter is held by itself: what a schema says of all of them is refused by name, and what stands in
// the way of the tags too.
TEST_F(ForcedCalls, WhatCannotBeHeldBetweenTagsIsRefused) {
  const AnswerSyntax& tags = families.at("Qwen3-Coder").syntax;
  const auto told = [&](const std::string& parameters) {
    Constraint calls = forced(true);
    calls.tools = {{"f", parameters}};
    const auto part = answer_grammar(calls, tags, false);
    return part.ok() ? std::string() : part.error().message;
  };
  const std::string a = R"("type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}})";
  const std::map<std::string, std::string> refused = {
      {"{" + a + R"(, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})", "'anyOf'"},
      {"{" + a + R"(, "allOf": [{"required": ["a"]}]})", "'allOf'"},
      {R"({"$ref": "#/$defs/A", "$defs": {"A": {)" + a + "}}}", "'$ref'"},
      {"{" + a + R"(, "maxProperties": 1})", "'maxProperties'"},
      {"{" + a + R"(, "minProperties": 1})", "'minProperties'"},
      {"{" + a + R"(, "not": {"required": ["a"]}})", "'not'"},
      {"{" + a + R"(, "if": {"required": ["a"]}, "then": {"required": ["b"]}})", "'if'"},
      {"{" + a + R"(, "dependentRequired": {"a": ["b"]}})", "'dependentRequired'"},
      {"{" + a + R"(, "required": ["z"]})", "\"z\""},
      {R"({"type": "array"})", "of type object"},
      {R"({"enum": [{}]})", "'enum'"},
      {R"({"type": "object", "properties": {"a>b": {}}})", "'a>b'"},
      {R"({"type": "object", "properties": {" k ": {}}})", "' k '"},
      {R"({"type": "object", "properties": {"a": {"enum": ["x", "y\n</parameter>z"]}}})", "parameter 'a': 'y"},
      {R"({"type": "object", "properties": {"a": {"enum": [""]}}})", "parameter 'a': ''"},
      {R"({"type": "object", "properties": {"a": {"type": "integer", "enum": ["x", "y"]}}})", "parameter 'a'"},
      {R"({"type": "object", "properties": {"a": false}, "required": ["a"]})", "parameter 'a'"}};
  for (const auto& [parameters, why] : refused) {
    const std::string error = told(parameters);
    EXPECT_TRUE(error.starts_with("tool 'f': ")) << parameters << error;
    EXPECT_NE(error.find(why), std::string::npos) << parameters << error;
  }
  for (const std::string& fine :
       {"{" + a + R"(, "required": ["a"], "additionalProperties": false, "minProperties": 1, "maxProperties": 2})",
        "{" + a + R"(, "title": "F", "description": "d", "$schema": "s", "$defs": {}, "minLength": 3})",
        std::string(
            R"({"properties": {"a": false, "b": {"type": ["string", "null"], "enum": ["x y", " z\nz", "\t"]}}})")})
    EXPECT_EQ(told(fine), "");
}

// Where calls are messages: a thought may come first, then one call, or the message that is the answer.
TEST_F(ForcedCalls, AsMessages) {
  const AnswerSyntax& syntax = families.at("openai-gpt-oss-120b").syntax;
  const std::string thought = "<|channel|>analysis<|message|>Hm. <|end|> {<|end|><|start|>assistant";
  const std::string call =
      " to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": \"a\", \"unit\": \"C\"}";
  const auto calls = grammar_of(forced(false), syntax, false);
  ASSERT_TRUE(calls);
  for (const std::string& text : {call, thought + call}) {
    EXPECT_TRUE(takes(calls, text)) << text;
    EXPECT_EQ(good_calls(answer_of(read(reading_with(syntax, false), text))), 1) << text;
  }
  const std::string said = "<|channel|>final<|message|>", text = said + "{\"n\": 5}";
  for (const std::string& other : {text, std::string("{}"), thought, call + call,
                                   std::string(" to=functions.get_weather<|channel|>commentary json<|message|>{}")})
    EXPECT_FALSE(takes(calls, other)) << other;
  Constraint schema;
  schema.form = Constraint::Form::kSchema;
  schema.text = R"({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})";
  schema.reasons = true;
  const auto answers = grammar_of(schema, syntax, false);
  ASSERT_TRUE(answers);
  EXPECT_TRUE(takes(answers, text));
  EXPECT_TRUE(takes(answers, thought + text));
  EXPECT_FALSE(takes(answers, said + "{\"n\": \"5\"}"));
  EXPECT_FALSE(takes(answers, "{\"n\": 5}"));
  EXPECT_FALSE(takes(answers, call));
  schema.tools = forced(false).tools;  // beside tools a call is an answer too
  EXPECT_TRUE(takes(grammar_of(schema, syntax, false), call));
  int whole = 0;
  for (int i = 0; i < 60; ++i) {
    const auto random_call = random_text(v, calls, random, {syntax.messages.next});
    if (!random_call || unreadable(*random_call)) continue;
    ++whole;
    const Answer answer = answer_of(read(reading_with(syntax, false), *random_call));
    EXPECT_EQ(good_calls(answer), 1) << *random_call;
    EXPECT_EQ(answer.content, "");
  }
  EXPECT_GT(whole, 5);
}

// Strict tools that nobody forces: thoughts and words, and then an answer, or a call that fits.
TEST_F(ForcedCalls, StrictToolsAsMessages) {
  const AnswerSyntax& syntax = families.at("openai-gpt-oss-120b").syntax;
  Constraint strict = forced(false);
  strict.may_speak = true;
  const auto grammar = grammar_of(strict, syntax, false);
  ASSERT_TRUE(grammar);
  const std::string next = "<|end|><|start|>assistant",
                    thought = "<|channel|>analysis<|message|>to=functions.f?" + next;
  const std::string word = "<|channel|>commentary<|message|>I look." + next;
  const std::string own = "<|channel|>commentary to=functions.get_weather", message = "<|message|>";
  const std::string fits = "{\"city\": \"a\", \"unit\": \"C\"}";
  for (const std::string& before : {std::string(), thought, word, thought + word}) {
    EXPECT_TRUE(takes(grammar, before + "<|channel|>final<|message|>It rains.")) << before;
    for (const std::string& call : {" to=functions.get_weather<|channel|>commentary json" + message + fits,
                                    own + message + fits, own + " json" + message + fits}) {
      EXPECT_TRUE(takes(grammar, before + call)) << before << call;
      const Answer read_back = answer_of(read(reading_with(syntax, false), before + call));
      EXPECT_EQ(good_calls(read_back), 1) << before << call;
    }
  }
  for (const std::string& other : {own + message + "{\"city\": 5}", own + "er" + message + fits, own + message + "{}",
                                   std::string("<|channel|>commentary to=functions.nobody<|message|>{}"), thought})
    EXPECT_FALSE(takes(grammar, other)) << other;
}

// Of several tools, and in whatever way a model writes their arguments.
TEST_F(ForcedCalls, ARefusedSchemaIsNamedByItsTool) {
  Constraint calls = forced(true);
  calls.tools[1].parameters =
      R"({"type": "object", "properties": {"n": {"type": "object", "properties": {"list": {"type": "array",
          "uniqueItems": true}}}}})";
  int tagged = 0, whole = 0;
  for (const auto& [name, family] : families) {
    if (family.syntax.calls.form == Form::kNone && !family.syntax.messages.calls()) continue;
    const bool tags = family.syntax.calls.form == Form::kTagged;
    ++(tags ? tagged : whole);
    const auto part = answer_grammar(calls, family.syntax, false);
    ASSERT_FALSE(part.ok()) << name;
    EXPECT_EQ(part.error().code, Code::kInvalidArgument);
    EXPECT_EQ(part.error().message,
              tags ? "tool 'note_down': parameter 'n': schema at /properties/list: 'uniqueItems' is not supported"
                   : "tool 'note_down': schema at /properties/n/properties/list: 'uniqueItems' is not supported")
        << name;
  }
  EXPECT_GT(tagged, 0);
  EXPECT_GT(whole, 0);
  calls.tools[1].parameters = R"({"type": "object", "properties": {"n": {"enum": []}}})";
  const auto none = answer_grammar(calls, families.at("Qwen3-Coder").syntax, false);
  ASSERT_FALSE(none.ok());
  EXPECT_TRUE(none.error().message.starts_with("tool 'note_down': parameter 'n': ")) << none.error().message;
}

// Between tags a parameter is a schema of its own; its $refs begin at the tool's nevertheless.
TEST_F(ForcedCalls, RefsBeginAtTheToolsSchema) {
  Constraint calls = forced(true);
  const auto with = [&](const char* parameters) {
    calls.tools = {{.name = "add", .parameters = parameters}};
    return calls;
  };
  const AnswerSyntax& syntax = families.at("Qwen3-Coder").syntax;
  const auto call = [&](const std::string& key, const std::string& value) {
    const CallSyntax& c = syntax.calls;
    return c.begin + "add" + c.after_name + "\n" + c.key_begin + key + c.other_key_end + value + c.value_end + c.end;
  };
  const auto takes_value = [&](const char* parameters, const std::string& key, const std::string& value) {
    const auto grammar = grammar_of(with(parameters), syntax, false);
    return grammar && takes(grammar, call(key, value));
  };
  const char* tree = R"({"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}},
      "required": ["children"]})";
  EXPECT_TRUE(takes_value(tree, "children", R"([{"children": [{"children": []}]}])"));
  EXPECT_FALSE(takes_value(tree, "children", "[[]]")) << "# is not the parameter";
  const char* named = R"({"$id": "http://k/tool", "type": "object", "properties": {"children": {"type": "array",
      "items": {"$ref": "#"}}}, "required": ["children"]})";
  EXPECT_TRUE(takes_value(named, "children", R"([{"children": []}])")) << "the tool has an $id of its own";
  const auto foreign = answer_grammar(with(R"({"type": "object", "properties": {"a": {"$id": "http://k/a",
      "type": "array", "items": {"$ref": "#"}}}})"),
                                      syntax, false);
  ASSERT_FALSE(foreign.ok()) << "there # is the parameter";
  EXPECT_NE(foreign.error().message.find("schema at /properties/a: it has an $id"), std::string::npos)
      << foreign.error().message;
  const char* other =
      R"({"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "integer"}}})";
  EXPECT_TRUE(takes_value(other, "a", "12"));
  EXPECT_FALSE(takes_value(other, "a", "true"));
  const char* through = R"({"type": "object", "properties": {"a": {"$ref": "#/$defs/d"}, "b": {"type": "integer"}},
      "$defs": {"d": {"type": "array", "items": {"$ref": "#/properties/b"}}}})";
  EXPECT_TRUE(takes_value(through, "a", "[1, 2]"));
  EXPECT_FALSE(takes_value(through, "a", "[true]"));
  const auto part = answer_grammar(with(R"({"properties": {"a": {"$ref": "#/properties/b"},
      "b": {"type": "array", "uniqueItems": true}}})"),
                                   syntax, false);
  ASSERT_FALSE(part.ok());
  EXPECT_EQ(part.error().message,
            "tool 'add': parameter 'a': schema at /$defs/tool/properties/b: 'uniqueItems' is not supported");
}

// What goes along with each parameter is bounded before it is written.
TEST_F(ForcedCalls, CarriedDefinitionsAreBounded) {
  const auto with = [&](int parameters, const Json& one) {
    Json schema = {{"type", "object"}, {"properties", Json::object()}, {"$defs", Json::object()}};
    for (int i = 0; i < parameters; ++i) schema["properties"]["p" + std::to_string(i)] = one;
    schema["$defs"]["d"] = {{"enum", Json::array({std::string(60'000, 'x')})}};
    Constraint calls = forced(true);
    calls.tools = {{.name = "add", .parameters = schema.dump()}};
    const auto part = answer_grammar(calls, families.at("Qwen3-Coder").syntax, false);
    return part.ok() ? std::string() : part.error().message;
  };
  const Json refers = {{"$ref", "#/$defs/d"}};
  EXPECT_EQ(with(4, refers), "") << "power";
  EXPECT_EQ(with(1000, {{"type", "integer"}}), "") << "it goes where a $ref is";
  EXPECT_NE(with(1000, refers).find("tool 'add': parameter 'p69': what $refs of"), std::string::npos)
      << with(1000, refers);
}

TEST_F(ForcedCalls, WhatIsNotUnderstoodIsRefused) {
  for (const char* name : {"smollm3"}) {
    const auto part = answer_grammar(forced(false), families.at(name).syntax, false);
    ASSERT_FALSE(part.ok()) << name;
    EXPECT_EQ(part.error().code, Code::kUnsupported);
  }
  Constraint bad = forced(false);
  bad.tools[0].parameters = "{";
  EXPECT_FALSE(answer_grammar(bad, families.at("qwen2.5").syntax, false).ok());
  bad.tools.clear();
  EXPECT_FALSE(answer_grammar(bad, families.at("qwen2.5").syntax, false).ok());
}

}  // namespace
}  // namespace kvilt
