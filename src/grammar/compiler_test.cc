// Grammars over a small vocabulary: random texts of a schema fit it, words and expressions mean what they say, matchers go
// back, the cache.
#include "grammar/compiler.h"

#include <gtest/gtest.h>

#include <regex>

#include "grammar/schema_validator_for_test.h"
#include "grammar/vocabulary_for_test.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

std::shared_ptr<const Grammar> compiled(GrammarCompiler& compiler, const GrammarPart& part) {
  auto made = compiler.compile(part);
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return made.ok() ? made.value() : nullptr;
}

// Whether the whole text is one of the grammar, byte by byte.
bool matches(const JsonVocabulary& v, std::shared_ptr<const Grammar> grammar, std::string_view text) {
  GrammarMatcher matcher(std::move(grammar));
  return take_text(matcher, text) && matcher.may_end();
}

std::string next_bytes(GrammarMatcher& matcher) {
  const auto bytes = matcher.next_bytes().value();
  std::string out;
  for (int byte = 0; byte < 256; ++byte) {
    if (bytes[static_cast<size_t>(byte)]) out += static_cast<char>(byte);
  }
  return out;
}

// Schemas, each with a value that does not fit it.
const std::vector<std::pair<const char*, const char*>>& schemas() {
  static const std::vector<std::pair<const char*, const char*>> kAll = {
      {R"({"type":"object"})", "[]"},
      {R"({"type":"string"})", "1"},
      {R"({"type":"integer"})", "1.5"},
      {R"({"type":"boolean"})", "null"},
      {R"({"type":"null"})", "false"},
      {R"({"type":["string","null"]})", "3"},
      {R"({"type":"object","properties":{"name":{"type":"string"},"na":{"type":"integer"}},"required":["name"]})",
       R"({"na":1})"},
      {R"({"type":"object","properties":{"a":{"type":"number"}},"required":["a"],"additionalProperties":false})",
       R"({"a":1,"b":2})"},
      {R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"string"}})",
       R"({"b":2})"},
      {R"({"type":"object","additionalProperties":{"type":"boolean"},"minProperties":1,"maxProperties":2})", "{}"},
      {R"({"type":"object","propertyNames":{"pattern":"^[a-c]+$"},"additionalProperties":{"type":"null"}})",
       R"({"x":null})"},
      {R"({"type":"object","patternProperties":{"^n_":{"type":"integer"}},"additionalProperties":false})",
       R"({"n_a":"x"})"},
      {R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":4})", "[1]"},
      {R"({"type":"array","prefixItems":[{"type":"string"},{"type":"boolean"}],"items":false,"minItems":2})",
       R"([1,true])"},
      {R"({"type":"array","items":{"type":"array","items":{"enum":[1,2,"ab"]}}})", "[[3]]"},
      {R"({"enum":["yes","no",null,12,{"a":[1]}]})", R"("maybe")"},
      {R"({"enum":["yes",1],"type":"string"})", "1"},
      {R"({"const":{"name":"ab"}})", R"({"name":"cd"})"},
      {R"({"type":"string","minLength":2,"maxLength":5})", R"("a")"},
      {R"({"type":"string","pattern":"^[a-z]{2}-[0-9]+$"})", R"("a-1")"},
      {R"({"type":"string","pattern":"^a.*b$"})", R"("a")"},
      {R"({"type":"integer","minimum":-3,"maximum":12})", "13"},
      {R"({"type":"integer","exclusiveMinimum":0})", "0"},
      {R"({"type":"integer","multipleOf":7,"minimum":0,"maximum":100})", "8"},
      {R"({"type":"number","minimum":0,"maximum":1})", "1.5"},
      {R"({"type":"number","exclusiveMinimum":-2.5,"exclusiveMaximum":2.5})", "2.5"},
      {R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":3}]})", R"("abcd")"},
      {R"({"oneOf":[{"type":"integer"},{"type":"boolean"}]})", R"("ab")"},
      {R"({"oneOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}],"$defs":{"a":{"type":"object","properties":{)"
       R"("na":{"const":"ab"},"12":{"type":"boolean"}},"required":["na","12"]},"b":{"type":"object","properties":{)"
       R"("na":{"enum":["cd","yes"]}},"required":["na"]}}})",
       R"({"na":"ab"})"},
      {R"({"type":"string","format":"date","minLength":1})", R"("")"},
      {R"({"allOf":[{"type":"integer"}]})", R"("ab")"},
      {R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},)"
       R"("next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"]}}})",
       R"({"v":1})"},
      {R"({"type":"object","properties":{"self":{"$ref":"#"}}})", R"({"self":1})"},
      // Two that differ in a property `title` alone, or in a value's.
      {R"({"type":"object","properties":{"book":{"type":"object","properties":{"id":{"type":"integer"},)"
       R"("title":{"type":"string"}},"required":["id","title"]},"rank":{"type":"object","properties":{)"
       R"("id":{"type":"integer"},"title":{"type":"integer"}},"required":["id","title"]}},"required":["book","rank"]})",
       R"({"book":{"id":1,"title":"a"},"rank":{"id":2,"title":"b"}})"},
      {R"({"anyOf":[{"const":{"default":1}},{"const":{"default":[2]}}]})", R"({"default":2})"},
      {R"({"title":"T","description":"d","type":"object","properties":{"\u00e9 \"q\"":{"type":"boolean","default":true}},)"
       R"("required":["\u00e9 \"q\""]})",
       "{}"},
  };
  return kAll;
}

// The second schema of two that differ in a property's schema, that property being named as an annotation is.
TEST(Grammar, PropertiesNamedAsAnnotationsAreProperties) {
  const JsonVocabulary v;
  const auto compiler = v.compiler();
  for (const char* name : {"title", "description", "default", "examples", "deprecated", "readOnly", "$comment"}) {
    const auto object = [&](const char* type) {
      return Json{{"type", "object"}, {"properties", {{name, {{"type", type}}}}}, {"required", Json::array({name})}};
    };
    const Json schema{{"type", "array"},
                      {"prefixItems", Json::array({object("string"), object("integer")})},
                      {"minItems", 2},
                      {"items", false}};
    const auto grammar = compiled(*compiler, GrammarPart::json(schema));
    ASSERT_TRUE(grammar);
    const Json text{{name, "a"}}, number{{name, 1}};
    EXPECT_TRUE(matches(v, grammar, Json::array({text, number}).dump())) << name;
    EXPECT_FALSE(matches(v, grammar, Json::array({text, text}).dump())) << name;
    const auto one_of = compiled(*compiler, GrammarPart::json({{"anyOf", {{{"const", text}}, {{"const", number}}}}}));
    ASSERT_TRUE(one_of);
    EXPECT_TRUE(matches(v, one_of, text.dump()) && matches(v, one_of, number.dump())) << name;
  }
}

// What a pattern or a format lets into a string is JSON, and fits; a pattern that cannot be written so is refused.
TEST(Grammar, PatternsAndFormatsMakeJson) {
  const JsonVocabulary v;
  const auto compiler = v.compiler();
  const auto takes = [&](const Json& schema, const std::string& text) {
    const auto grammar = compiled(*compiler, GrammarPart::json(schema));
    return grammar && matches(v, grammar, text);
  };
  const auto pattern = [](const char* text) { return Json{{"type", "string"}, {"pattern", text}}; };
  for (const char* one :
       {"^.+$", "^Größe: .+$", "^[^a]+$", "^\\S+$", "^.{1,140}$", "^([^a]b){0,140}$", "^[ü\"\\\\]+$"}) {
    for (const char* bad : {"\"\"\"", "\"Größe: \"\"", "\"\n\"", "\"Größe: \n\"", "\"\\w\"", "\"\"b\"", "\"\\\""})
      EXPECT_FALSE(takes(pattern(one), bad)) << one << ": " << bad;
  }
  EXPECT_TRUE(takes(pattern("^Größe: .+$"), "\"Größe: 3 m²\""));
  EXPECT_FALSE(takes(pattern("^Größe: .+$"), "\"Grösse: 3\""));
  EXPECT_TRUE(takes(pattern("^[ä-ü]{2}$"), "\"öü\""));
  EXPECT_FALSE(takes(pattern("^[ä-ü]{2}$"), "\"öz\""));
  EXPECT_TRUE(takes(pattern("^.{1,140}$"), "\"" + std::string(140, 'x') + "\""));
  EXPECT_FALSE(takes(pattern("^.{1,140}$"), "\"" + std::string(141, 'x') + "\""));
  for (const char* one : {"^C:\\\\[a-z]+$", "^\"[a-z]+\"$", "a]b.*\\1", "\\n"}) {
    for (const Json& schema :
         {pattern(one), Json{{"type", "object"}, {"patternProperties", {{one, {{"type", "null"}}}}}},
          Json{{"type", "object"}, {"propertyNames", pattern(one)}, {"additionalProperties", true}}}) {
      const auto made = compiler->compile(GrammarPart::json(schema));
      ASSERT_FALSE(made.ok()) << schema;
      EXPECT_NE(made.error().message.find("the pattern"), std::string::npos) << made.error().message;
    }
  }
  const auto format = [](const char* name) { return Json{{"type", "string"}, {"format", name}}; };
  EXPECT_TRUE(takes(format("email"), R"("a.b'c@x-y.org")"));
  EXPECT_FALSE(takes(format("email"), R"("\"a\k\"@x.org")")) << "\\k is no JSON";
  EXPECT_TRUE(takes(format("json-pointer"), R"("/a/~1b/ü")"));
  EXPECT_TRUE(takes(format("relative-json-pointer"), R"("1/a")"));
  EXPECT_TRUE(takes(format("relative-json-pointer"), R"("0#")"));
  for (const char* bad : {"\"/\"\"", "\"/\\w\"", "\"/\n\"", "\"0/\"\"", "\"0/\\w\"", "\"0/\n\""}) {
    EXPECT_FALSE(takes(format("json-pointer"), bad)) << bad;
    EXPECT_FALSE(takes(format("relative-json-pointer"), bad)) << bad;
  }
}

// Random texts of every format that is held to.
TEST(Grammar, RandomTextsOfFormatsAreJson) {
  const JsonVocabulary v;
  const auto compiler = v.compiler();
  std::mt19937 random(11);
  for (const char* name : {"email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri",
                           "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"}) {
    const auto grammar = compiled(*compiler, GrammarPart::json({{"type", "string"}, {"format", name}}));
    ASSERT_TRUE(grammar);
    int whole = 0;
    for (int i = 0; i < 20; ++i) {
      const auto text = random_text(v, grammar, random);
      if (!text || !is_utf8(*text)) continue;
      ++whole;
      EXPECT_TRUE(Json::accept(*text)) << name << ": " << *text;
    }
    EXPECT_GT(whole, 0) << name;
  }
}

TEST(Grammar, RandomTextsFitTheirSchema) {
  const JsonVocabulary v;
  const auto compiler = v.compiler();
  std::mt19937 random(7);
  for (const auto& [text, wrong] : schemas()) {
    const Json schema = Json::parse(text);
    const auto grammar = compiled(*compiler, GrammarPart::json(schema));
    if (!grammar) continue;
    int whole = 0;
    for (int i = 0; i < 40; ++i) {
      const auto answer = random_text(v, grammar, random);
      // xgrammar lets surrogates through, which a vocabulary of bytes can write; an engine's text has U+FFFD for them.
      if (!answer || !is_utf8(*answer)) continue;
      if (std::regex_search(*answer, std::regex("[eE][+]?[0-9]{3}"))) continue;  // JSON, and beyond any double
      ++whole;
      const Json value = Json::parse(*answer, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << text << "\n" << *answer;
      EXPECT_TRUE(SchemaValidator(schema).fits(value)) << text << "\n" << *answer;
    }
    EXPECT_GT(whole, 5) << text;
    // Power: the second implementation can say no, and so does the grammar.
    EXPECT_FALSE(SchemaValidator(schema).fits(Json::parse(wrong))) << text;
    EXPECT_FALSE(matches(v, grammar, wrong)) << text;
  }
}

TEST(Grammar, WithoutOneRandomTextsAreNoJson) {
  const JsonVocabulary v;
  std::mt19937 random(7);
  int valid = 0;
  for (int i = 0; i < 50; ++i) {
    std::string text;
    for (int n = 0; n < 20; ++n) text += v.tokenizer->token_bytes(static_cast<int32_t>(random() % 280));
    if (text.find('\0') == std::string::npos) valid += !Json::parse(text, nullptr, false).is_discarded();
  }
  EXPECT_EQ(valid, 0);
}

TEST(Grammar, WordsExpressionsAndRules) {
  const JsonVocabulary v;
  const auto compiler = v.compiler();
  const auto choice = compiled(*compiler, GrammarPart::one_of({GrammarPart::word("yes"), GrammarPart::word("no")}));
  EXPECT_TRUE(matches(v, choice, "yes"));
  EXPECT_TRUE(matches(v, choice, "no"));
  EXPECT_FALSE(matches(v, choice, "ye"));
  EXPECT_FALSE(matches(v, choice, "noo"));
  const auto date = compiled(*compiler, GrammarPart::regex("\\d{4}-(0[1-9]|1[0-2])|never"));
  EXPECT_TRUE(matches(v, date, "2026-11"));
  EXPECT_TRUE(matches(v, date, "never"));
  EXPECT_FALSE(matches(v, date, "2026-13"));
  const auto sum = compiled(*compiler, GrammarPart::ebnf("root ::= n (\"+\" n)*\nn ::= [0-9]+ | \"(\" root \")\""));
  EXPECT_TRUE(matches(v, sum, "1+(2+34)"));
  EXPECT_FALSE(matches(v, sum, "1+(2+34"));
  const auto thought =
      compiled(*compiler,
               GrammarPart::sequence({GrammarPart::until("", "</t>"), GrammarPart::space(), GrammarPart::word("ab")}));
  EXPECT_TRUE(matches(v, thought, "so <t> or < so</t>\n\nab"));
  EXPECT_FALSE(matches(v, thought, "ab"));
  EXPECT_FALSE(matches(v, thought, "so</t>cd"));
  const auto speech = compiled(*compiler, GrammarPart::text_with("<call>", GrammarPart::word("ab"), "</call>", false));
  EXPECT_TRUE(matches(v, speech, ""));
  EXPECT_TRUE(matches(v, speech, "a word <c and <call>ab</call> more"));
  EXPECT_FALSE(matches(v, speech, "<call>cd"));
}

TEST(Grammar, TokensThatMayCome) {
  const JsonVocabulary v;
  const auto compiler = v.compiler();
  GrammarMatcher matcher(
      compiled(*compiler, GrammarPart::one_of({GrammarPart::word("yes"), GrammarPart::word("yellow")})));
  const int32_t yes = *v.tokenizer->id_of("yes");
  const auto first = allowed(matcher, v.vocab);
  EXPECT_EQ(first, (std::vector<int32_t>{1 + 'y', yes}));
  EXPECT_EQ(next_bytes(matcher), "y");
  EXPECT_FALSE(matcher.accept(1 + 'z').value());
  EXPECT_EQ(allowed(matcher, v.vocab), first) << "a token that was refused changes nothing";
  EXPECT_FALSE(matcher.may_end());
  EXPECT_TRUE(matcher.accept(yes).value());
  EXPECT_TRUE(matcher.may_end());
  EXPECT_EQ(allowed(matcher, v.vocab), std::vector<int32_t>{v.end});
  matcher.rollback(1);
  EXPECT_EQ(allowed(matcher, v.vocab), first);
  EXPECT_TRUE(matcher.accept(1 + 'y').value());
  EXPECT_TRUE(matcher.accept(1 + 'e').value());
  EXPECT_EQ(next_bytes(matcher), "ls");
  EXPECT_TRUE(matcher.accept_text("llo").value());
  EXPECT_EQ(next_bytes(matcher), "w");
  EXPECT_FALSE(matcher.accept_text("wx").value());
  EXPECT_EQ(next_bytes(matcher), "w") << "a text that was refused changes nothing";
  matcher.rollback(2);
  EXPECT_EQ(next_bytes(matcher), "e") << "a text goes back as one token";
}

// Inside a string every text may come, but no control token that nobody asked for.
TEST(Grammar, ControlTokensAreAllowedWhereTheyAreKnown) {
  const JsonVocabulary v;
  const auto compiler = v.compiler();
  GrammarMatcher matcher(compiled(*compiler, GrammarPart::json({{"type", "string"}})));
  ASSERT_TRUE(matcher.accept(1 + '"').value());
  const auto ids = allowed(matcher, v.vocab);
  const auto may = [&](int32_t id) { return std::ranges::binary_search(ids, id); };
  EXPECT_TRUE(may(1 + 'a'));
  EXPECT_TRUE(may(v.call));
  EXPECT_FALSE(may(v.think));
  EXPECT_FALSE(may(v.end));
  EXPECT_FALSE(may(v.vocab - 1));
}

TEST(Grammar, IsCompiledOnceAndForgottenWhenTheCacheIsFull) {
  const JsonVocabulary v;
  const auto compiler = v.compiler();
  const auto with = [](int n) { return GrammarPart::word("word" + std::to_string(n)); };
  const auto one = compiled(*compiler, with(1));
  EXPECT_EQ(compiled(*compiler, with(1)), one);
  EXPECT_EQ(compiler->compiled(), 1u);
  compiled(*compiler, with(2));
  EXPECT_EQ(compiler->compiled(), 2u);
  const size_t two = compiler->cached_bytes();
  EXPECT_GT(two, 0u);
  const auto small = v.compiler({.cached = two + two / 4});
  for (int i = 0; i < 10; ++i) {
    compiled(*small, with(1));  // used last
    compiled(*small, with(10 + i));
  }
  EXPECT_LE(small->cached_bytes(), two + two / 4);
  EXPECT_EQ(small->compiled(), 11u);
  EXPECT_NE(compiled(*small, with(10)), nullptr);
  EXPECT_EQ(small->compiled(), 12u) << "it was forgotten";
}

}  // namespace
}  // namespace kvilt
