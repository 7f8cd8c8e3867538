// Schemas that are written otherwise before xgrammar reads them: conditions beside unions and $refs, lengths beside
// patterns, multiples, lists of different items. What is let through fits the schema as it was.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "grammar/schema_check.h"
#include "grammar/schema_string.h"
#include "grammar/schema_validator_for_test.h"
#include "grammar/vocabulary_for_test.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

class Rewritten : public testing::Test {
 protected:
  // The schema's grammar lets these through, and none of those; random texts of it fit the schema as it stands here.
  void takes(const char* schema, const std::vector<std::string>& good, const std::vector<std::string>& bad,
             bool validated = true) {
    SCOPED_TRACE(schema);
    const Json read = Json::parse(schema);
    const auto grammar = compiler_->compile(GrammarPart::json(read));
    ASSERT_TRUE(grammar.ok()) << grammar.error().message;
    for (const std::string& text : good) {
      EXPECT_TRUE(is_taken(*grammar, text)) << text;
      if (validated) {
        EXPECT_TRUE(SchemaValidator(read).fits(Json::parse(text))) << text;
      }
    }
    for (const std::string& text : bad) EXPECT_FALSE(is_taken(*grammar, text)) << text;
    for (int i = 0; validated && i < 12; ++i) {
      const auto text = random_text(v_, *grammar, random_);
      if (!text || !is_utf8(*text) || is_beyond_doubles(*text)) continue;
      const Json value = Json::parse(*text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << *text;
      EXPECT_TRUE(SchemaValidator(read).fits(value)) << *text;
    }
  }
  void refuses(const char* schema, const char* why) {
    const auto made = compiler_->compile(GrammarPart::json(Json::parse(schema)));
    ASSERT_FALSE(made.ok()) << schema;
    EXPECT_EQ(made.error().code, Code::kInvalidArgument);
    EXPECT_NE(made.error().message.find(why), std::string::npos) << schema << ": " << made.error().message;
  }
  static bool is_taken(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
    GrammarMatcher matcher(grammar);
    return take_text(matcher, text) && matcher.may_end();
  }

  const JsonVocabulary v_{};
  const std::unique_ptr<GrammarCompiler> compiler_ = v_.compiler();
  std::mt19937 random_{3};
};

TEST_F(Rewritten, ATypeBesideAUnionGoesIntoItsBranches) {
  takes(R"({"type":"string","anyOf":[{"maxLength":2},{"minLength":4}]})", {R"("ab")", R"("abcd")"},
        {R"("abc")", "12", "null"});
  takes(R"({"type":["string","null"],"anyOf":[{"type":"string","maxLength":2},{"type":"null"},{"type":"integer"}]})",
        {R"("ab")", "null"}, {"12", R"("abc")"});
  takes(R"({"type":"number","anyOf":[{"type":"integer"},{"type":"string"}]})", {"12"}, {R"("a")", "1.5"});
  takes(R"({"type":"string","oneOf":[{"const":"a"},{"enum":["b",3]}]})", {R"("a")", R"("b")"}, {"3", R"("c")"});
  takes(R"({"type":"object","oneOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}],"$defs":{"a":{"type":"object",)"
        R"("properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k","x"]},"b":{"type":"object",)"
        R"("properties":{"k":{"const":"b"}},"required":["k"]}}})",
        {R"({"k":"a","x":3})", R"({"k":"b"})"}, {R"({"k":"a"})", R"({"k":"c"})", "[]"});
  refuses(R"({"type":"string","anyOf":[{"type":"integer"},{"type":"null"}]})", "no value fits");
}

TEST_F(Rewritten, PropertiesBesideAUnionGoIntoItsBranches) {
  const char* const either =
      R"({"type":"object","properties":{"id":{"type":"integer"},"na":{"type":"string"}},"additionalProperties":false,)"
      R"("anyOf":[{"required":["id"]},{"required":["na"]}]})";
  takes(either, {R"({"id":1})", R"({"na":"x"})", R"({"id":1,"na":"x"})"}, {"{}", R"({"id":"x"})", R"({"b":1,"id":1})"});
  // What the base does not describe, and closes, no branch opens.
  takes(R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false,)"
        R"("anyOf":[{"required":["a"]},{"properties":{"b":true},"required":["b"]}]})",
        {R"({"a":1})"}, {R"({"b":1})", R"({"a":1,"b":1})", "{}"});
  takes(R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"string"},)"
        R"("anyOf":[{"properties":{"b":{"maxLength":2}},"required":["b"]},{"required":["a"]}]})",
        {R"({"a":1})", R"({"b":"xy"})"}, {R"({"b":1})", R"({"b":"xyz"})", "{}"});
  takes(R"({"type":"object","properties":{"k":{"type":"string"}},"required":["k"],"oneOf":[)"
        R"({"properties":{"k":{"const":"a"},"n":{"type":"integer"}}},{"properties":{"k":{"const":"b"}}}]})",
        {R"({"k":"a","n":3})", R"({"k":"b"})"}, {R"({"k":"c"})", R"({"n":3})"});
}

TEST_F(Rewritten, SchemasOfAnAllOfBecomeOne) {
  takes(R"({"allOf":[{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]},{"type":"object",)"
        R"("properties":{"b":{"type":"integer"}},"required":["b"]}]})",
        {R"({"a":"x","b":1})"}, {R"({"a":"x"})", R"({"b":1})", R"({"a":1,"b":1})"});
  takes(R"({"allOf":[{"$ref":"#/$defs/p"},{"type":"object","properties":{"q":{"minimum":3}}}],"$defs":{"p":{)"
        R"("type":"object","properties":{"q":{"type":"integer","maximum":5}},"required":["q"]}}})",
        {R"({"q":3})", R"({"q":5})"}, {R"({"q":2})", R"({"q":6})", "{}"});
  takes(R"({"$ref":"#/$defs/n","maximum":9,"$defs":{"n":{"type":"integer","minimum":0}}})", {"0", "9"}, {"10", "-1"});
  takes(R"({"type":"array","allOf":[{"minItems":1},{"items":{"type":"integer"}},{"maxItems":2}]})", {"[1]", "[1,2]"},
        {"[]", "[1,2,3]", R"(["a"])"});
  takes(R"({"enum":["a","abc",3,null],"maxLength":2,"minimum":4})", {R"("a")", "null"}, {R"("abc")", "3"});
  refuses(R"({"allOf":[{"type":"string","pattern":"^a"},{"pattern":"b$"}]})", "two conditions 'pattern'");
  refuses(R"({"allOf":[{"properties":{"a":true}},{"unevaluatedProperties":false}]})", "unevaluatedProperties");
  refuses(R"({"allOf":[{"type":"array","prefixItems":[{}]},{"items":{"type":"null"}}]})", "prefixItems");
  refuses(R"({"allOf":[{"type":"string"},{"not":{"const":"a"}}]})", "'not' is not supported");
  refuses(R"({"anyOf":[]})", "not empty");
  refuses(R"({"anyOf":[false,{"not":{}}]})", "no value fits");
}

// A circle of $refs with conditions beside them ends with an error, and early.
// What stands beside something that is written otherwise is held to or refused, and never left out.
TEST_F(Rewritten, NothingIsLeftOut) {
  const auto never_takes = [&](const char* schema, const std::vector<std::string>& texts) {
    const auto grammar = compiler_->compile(GrammarPart::json(Json::parse(schema)));
    for (const std::string& text : texts) EXPECT_TRUE(!grammar.ok() || !is_taken(*grammar, text)) << schema << text;
  };
  never_takes(R"({"allOf":[{"type":"object","anyOf":[{"type":"object","properties":{"a":{"type":"integer"}},
      "required":["a"],"anyOf":[{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]},
      {"type":"null"}]}]},{"type":"object","properties":{"c":{"type":"integer"}}}]})",
              {R"({"x":1})", R"({"x": 1})", R"({"a":"no","x":1})", R"({"a": "no", "x": 1})"});
  refuses(R"({"type":"array","uniqueItems":true,"items":{"enum":["a","b"]},"contains":{"const":"b"}})", "'contains'");
  refuses(R"({"type":"array","uniqueItems":true,"items":{"enum":["a","b"]},"not":{"const":[]}})", "'not'");
  never_takes(R"({"type":"array","uniqueItems":true,"items":{"$ref":"#/$defs/n","minimum":3},
      "$defs":{"n":{"enum":[1,2,5]}}})",
              {"[1]", "[2]"});
  never_takes(R"({"type":"array","uniqueItems":true,"items":{"enum":[{"x":1,"y":2},{"y":2,"x":1}]}})",
              {R"([{"x":1,"y":2},{"y":2,"x":1}])", R"([{"x": 1, "y": 2}, {"y": 2, "x": 1}])"});
  never_takes(R"({"type":"object","propertyNames":{"$ref":"#/$defs/n","minLength":3},
      "$defs":{"n":{"enum":["a","abcd"]}}})",
              {R"({"a":1})", R"({"a": 1})"});
  never_takes(R"({"type":"object","propertyNames":{"enum":["a"]},"unevaluatedProperties":{"type":"integer"}})",
              {R"({"a":"x"})", R"({"a": "x"})"});
  never_takes(R"({"type":"object","propertyNames":{"enum":["a"]},"unevaluatedProperties":false})",
              {R"({"a":1})", R"({"a": 1})"});
  never_takes(R"({"oneOf":[{"$ref":"#/$defs/p"},{"const":{"y":2,"x":1}}],"$defs":{"p":{"const":{"x":1,"y":2}}}})",
              {R"({"x":1,"y":2})", R"({"x": 1, "y": 2})"});
}

TEST_F(Rewritten, CirclesEnd) {
  refuses(R"({"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a"}]}}})", "$ref");
  refuses(
      R"({"$ref":"#/$defs/a","minLength":1,"$defs":{"a":{"$ref":"#/$defs/b","maxLength":3},"b":{"$ref":"#/$defs/a",)"
      R"("pattern":"a"}}})",
      "$ref");
  refuses(
      R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"l":{"minProperties":1,"$ref":"#/$defs/n"},)"
      R"("r":{"minProperties":1,"$ref":"#/$defs/n"}}}}})",
      "");
  // A type that says nothing new leaves the $ref what it is.
  takes(R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"null"},"l":{"type":"object",)"
        R"("$ref":"#/$defs/n"}},"required":["v"]}}})",
        {R"({"v":null})", R"({"v":null,"l":{"v":null}})"}, {R"({"l":{"v":null}})", R"({"v":null,"l":3})"});
}

TEST_F(Rewritten, OneOfThoseThatExcludeEachOther) {
  takes(R"({"oneOf":[{"type":"string","minLength":1},{"type":"array","items":{"type":"string"}}]})",
        {R"("a")", R"(["a"])"}, {R"("")", "[1]", "3"});
  takes(R"({"oneOf":[{"type":"string","format":"date"},{"type":"null"}]})", {R"("2026-11-28")", "null"}, {R"("a")"});
  refuses(R"({"oneOf":[{"type":"integer","minimum":1},{"type":"number","maximum":5}]})", "oneOf");
  // Pydantic's tag with a default is not required: here it is.
  takes(R"({"oneOf":[{"$ref":"#/$defs/c"},{"$ref":"#/$defs/d"}],"$defs":{"c":{"type":"object","properties":{"k":{)"
        R"("const":"c","default":"c"},"n":{"type":"integer"}}},"d":{"type":"object","properties":{"k":{"const":"d"},)"
        R"("m":{"type":"null"}}}}})",
        {R"({"k":"c","n":1})", R"({"k":"d"})"}, {"{}", R"({"n":1})", R"({"k":"c","m":null})"});
  // Within itself.
  takes(
      R"({"$ref":"#/$defs/e","$defs":{"e":{"oneOf":[{"$ref":"#/$defs/num"},{"$ref":"#/$defs/neg"}]},"num":{)"
      R"("type":"object","properties":{"k":{"const":"n"},"v":{"type":"integer"}},"required":["v"]},"neg":{)"
      R"("type":"object","properties":{"k":{"const":"-"}},"required":["of"],"additionalProperties":{"$ref":"#/$defs/e"}}}})",
      {R"({"k":"n","v":1})", R"({"k":"-","of":{"k":"n","v":2}})"}, {R"({"v":1})", R"({"k":"-","of":3})"});
}

TEST_F(Rewritten, LengthsOfPatterns) {
  const auto bounded = [](const char* pattern, int64_t least, int64_t most) {
    return bounded_pattern(pattern, least, most).value_or("-");
  };
  EXPECT_EQ(bounded("^[a-z]+$", 0, 32), "^[a-z]{1,32}$");
  EXPECT_EQ(bounded("^[A-Z]{3,}$", 3, 8), "^[A-Z]{3,8}$");
  EXPECT_EQ(bounded("^\\w*$", 2, -1), "^\\w{2,}$");
  EXPECT_EQ(bounded("^[a-z]{2}-\\d{4}$", 7, 7), "^[a-z]{2}-\\d{4}$") << "as it is";
  EXPECT_EQ(bounded("^[a-z]{2}-\\d{4}$", 8, -1), "-");
  EXPECT_EQ(bounded("^[a-z]{2}-\\d{4}$", 0, 6), "-");
  EXPECT_EQ(bounded("^\\S+@\\S+$", 0, 101), "^\\S{1,50}@\\S{1,50}$");
  EXPECT_EQ(bounded("^a?[é-ü]+$", 0, 4), "^a?[é-ü]{1,3}$") << "characters, not bytes";
  EXPECT_EQ(bounded("^(ab)*$", 3, 9), "^(ab){2,4}$");
  EXPECT_EQ(bounded("^(a|bcd)+x$", 0, 10), "^(a|bcd){1,3}x$");
  EXPECT_EQ(bounded("^(ab|c)$", 1, 2), "^(ab|c)$");
  EXPECT_EQ(bounded("^a|b*$", 1, 2), "-");
  EXPECT_EQ(bounded("a|b", 1, 1), "a|b");
  for (const char* unknown :
       {"^(?=a)a+$", "\\ba+", "(a)\\1", "a{", "[[]a]+", "a**", "x^a*", "(a", "\\p{L}+", "[]a]*", "\\"})
    EXPECT_EQ(bounded(unknown, 0, 99), "-") << unknown;
  EXPECT_EQ(bounded("((a{900000000}){900000000}){900000000}", 0, 9), "-") << "no number is passed over";
}

TEST_F(Rewritten, APatternAndALengthAreOne) {
  takes(R"({"type":"string","pattern":"^[a-z0-9-]+$","minLength":3,"maxLength":5})", {R"("a-1")", R"("abcde")"},
        {R"("ab")", R"("abcdef")", R"("AAA")"});
  takes(R"({"type":"string","pattern":"^[A-Z]{3,}$","minLength":3,"maxLength":200})",
        {"\"" + std::string(200, 'A') + "\""}, {"\"" + std::string(201, 'A') + "\"", R"("AA")"});
  takes(R"({"type":["string","null"],"pattern":"^[é]*$","maxLength":2})", {R"("éé")", "null", R"("")"}, {R"("ééé")"});
  refuses(R"({"type":"object","properties":{"a":{"type":"string","pattern":"^(a|b*)c$","maxLength":3}}})",
          "schema at /properties/a: a length beside the pattern");
}

// xgrammar took more than these say: what is optional, or comes twice and more, left its own way.
TEST_F(Rewritten, ExpressionsTakeNoMoreThanTheySay) {
  takes(R"({"type":"string","pattern":"^\\d{1,3}(\\.\\d*)?$"})", {R"("123")", R"("1.5")", R"("1.")"},
        {R"("1234")", R"("1.2.3")"});
  takes(R"({"type":"string","pattern":"^(a+b)?c$"})", {R"("c")", R"("aabc")"}, {R"("ac")", R"("aac")"});
  takes(R"({"type":"string","pattern":"^(bc*|a){2,}$"})", {R"("abcc")", R"("aa")", R"("bca")"}, {R"("aac")", R"("a")"});
  takes(R"({"type":"string","pattern":"^(a|bc*){0,}x$"})", {R"("x")", R"("abccx")"}, {R"("acx")"});
}

// xgrammar held a string to its format and passed over its pattern.
TEST_F(Rewritten, APatternBesideAFormatIsHeldTo) {
  takes(R"({"type":"string","format":"email","pattern":"^[a-z]+@x\\.org$"})", {R"("ab@x.org")"},
        {R"("ab@y.org")", R"("AB@x.org")"});
  takes(
      R"({"type":"string","format":"uuid","pattern":"^([0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})$"})",
      {R"("123e4567-e89b-42d3-a456-426614174000")"}, {R"("123e4567-e89b-12d3-a456-426614174000")"});
  // Zod 4's for e-mail looks around.
  takes(R"({"type":"string","format":"email","pattern":"^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@)"
        R"(([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"})",
        {R"("a.b'c+d@x-y.example.org")", R"("a@b.cd")"},
        {R"(".a@b.cd")", R"("a..b@c.de")", R"("a.@b.cd")", R"("a'@b.cd")", R"("a@b")", R"("@b.cd")"});
}

TEST_F(Rewritten, AFormatWithALengthIsAPattern) {
  takes(R"({"type":"string","format":"uri","minLength":1,"maxLength":2083})",
        {R"("https://example.com")", R"("https://example.com:8080/a/b%20c?q=1&r=2#top")"}, {R"("")", R"("example")"},
        false);
  takes(R"({"type":"string","format":"uri","maxLength":64})", {R"("https://example.com/abcdefgh")"},
        {"\"https://example.com/" + std::string(64, 'a') + "\""});
  takes(R"({"type":"string","format":"email","maxLength":50})", {R"("first.last@mail.example.org")", R"("a@b.de")"},
        {R"("a@b")", "\"" + std::string(48, 'a') + "@b.de\""});
  takes(R"({"type":"string","format":"uuid","minLength":36,"maxLength":36})",
        {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123")"});
  refuses(R"({"type":"string","format":"date-time","maxLength":10})", "format");
}

// As Pydantic writes them in the versions that give a pattern.
TEST_F(Rewritten, DecimalsAsTextAreWrittenWithoutLooks) {
  takes(R"({"type":"string","pattern":"^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"})",
        {R"("12")", R"("-1.50")", R"(".5")", R"("+3.")"}, {R"("")", R"(".")", R"("-")", R"("1.2.3")", R"("a")"});
  takes(R"({"type":"string","pattern":"^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d{0,2}0*$"})", {R"("12.34")", R"("7")", R"(".5")"},
        {R"("1.234")", R"(".")", R"("")"});
  takes(R"x({"type":"string","pattern":"^(?!^[-+.]*$)[+-]?0*(?:\\d{0,8}|(?=[\\d.]{1,11}0*$)\\d{0,8}\\.\\d{0,2}0*$)"})x",
        {R"("12345678.90")", R"("0.5")", R"("-3")"}, {R"("123456789")", R"("1.234")", R"("-")"});
  takes(R"x({"type":"string","pattern":"^(?!^[-+.]*$)[+-]?0*(?:\\d{0,4}|(?=[\\d.]{1,5}0*$)\\d*\\.\\d*0*$)"})x",
        {R"("1234")", R"("1.234")", R"("123.4")"}, {R"("12345")", R"("12.345")", R"(".")"});
  takes(R"x({"type":"string","pattern":"^(?!^[-+.]*$)[+-]?0*(?:\\d{0,0}|(?=[\\d.]{1,3}0*$)\\d{0,0}\\.\\d{0,2}0*$)"})x",
        {R"("0.25")", R"(".5")", R"("0")"}, {R"("1.5")", R"("0.255")"});
}

TEST_F(Rewritten, ListsOfDifferentItems) {
  takes(R"({"type":"array","items":{"$ref":"#/$defs/c"},"uniqueItems":true,"$defs":{"c":{"enum":["a","b","c"]}}})",
        {"[]", R"(["c","a"])", R"(["b", "c", "a"])"}, {R"(["a","a"])", R"(["a","b","a"])", R"(["d"])"});
  takes(R"({"type":"array","items":{"enum":["a","b","c","d","e"]},"uniqueItems":true,"minItems":2,"maxItems":3})",
        {R"(["e","a"])", R"(["c","e","d"])"}, {R"(["a"])", R"(["a","b","c","d"])", R"(["a","b","b"])"});
  takes(R"({"type":["array","null"],"items":{"type":"boolean"},"uniqueItems":true})",
        {"null", "[true,false]", "[false]"}, {"[true,true]", "[1]"});
  takes(R"({"type":"array","items":{"type":"string"},"maxItems":1,"uniqueItems":true})", {"[]", R"(["a"])"},
        {R"(["a","b"])"});
  refuses(R"({"type":"array","items":{"type":"string"},"uniqueItems":true})", "'uniqueItems' is not supported");
  refuses(R"({"type":"array","items":{"enum":[1,2,3,4,5,6]},"uniqueItems":true})", "'uniqueItems' is not supported");
  refuses(R"({"type":"array","items":{"enum":[1,1.0,2]},"uniqueItems":true,"minItems":3})", "fewer");
}

TEST_F(Rewritten, MultiplesHaveTheirLastDigits) {
  takes(R"({"type":"number","multipleOf":0.01})", {"0", "12.3", "-0.07", "12.34", "19.99"},
        {"1.234", "1e3", ".5", "01"});
  takes(R"({"type":"number","multipleOf":0.01,"minimum":0})", {"0", "0.01", "100.5"}, {"-1", "-0.01", "0.001"});
  takes(R"({"type":"number","multipleOf":0.01,"exclusiveMinimum":0,"maximum":100})", {"0.01", "99.99", "100", "100.00"},
        {"0", "0.00", "100.01", "101", "1000"});
  takes(R"({"type":"number","multipleOf":0.01,"minimum":12.34,"exclusiveMaximum":15.6})",
        {"12.34", "12.4", "13", "15.59", "15.5"}, {"12.33", "12.3", "12", "15.60", "15.6", "16"});
  takes(R"({"type":"number","multipleOf":0.1,"minimum":-1.5,"maximum":0.3})", {"-1.5", "-1", "-0.1", "0", "0.3", "0.0"},
        {"-1.6", "-2", "0.4", "1", "-0"});
  takes(R"({"type":"number","multipleOf":0.25})", {"0.25", "1.5", "-3.75", "2", "2.50"}, {"0.2", "1.05", "0.255"});
  takes(R"({"type":"number","multipleOf":0.5,"maximum":10})", {"10", "-7.5", "9.5", "10.0"}, {"10.5", "0.3"});
  takes(R"({"type":"integer","multipleOf":5,"minimum":0})", {"0", "5", "10", "1235"}, {"-5", "7", "12", "05", "5.0"});
  takes(R"({"type":"integer","multipleOf":2})", {"0", "-4", "18"}, {"3", "-0", "2.5"});
  takes(R"({"type":"integer","multipleOf":10,"exclusiveMinimum":0,"maximum":1000000})", {"10", "1000000", "990"},
        {"0", "5", "1000010", "2000000"});
  takes(R"({"type":"integer","multipleOf":100,"maximum":-250})", {"-300", "-1000"}, {"-200", "0", "100", "-350"});
  takes(R"({"type":"number","multipleOf":3})", {"3", "-9", "0"}, {"4", "3.5"});
  takes(R"({"type":["number","null"],"multipleOf":1})", {"3", "null"}, {"1.5"});
  takes(R"({"type":"integer","multipleOf":0.01})", {"3"}, {"1.5"});
  refuses(R"({"type":"number","multipleOf":1.5})", "schema: 'multipleOf' 1.5 is not supported");
  refuses(R"({"type":"integer","multipleOf":3,"minimum":0})", "'multipleOf' 3");
  refuses(R"({"type":"number","multipleOf":0.001,"minimum":0.0005})", "'multipleOf' 0.001");
  refuses(R"({"type":"number","multipleOf":0})", "above 0");
  takes(R"({"type":"number","multipleOf":0.000001})", {"0", "-0.000001", "-0.5", "-3", "0.100000"},
        {"-0", "-0.0000001"});
  takes(R"({"type":"number","multipleOf":0.001,"maximum":0})", {"-0.05", "0", "-1.010"}, {"-0.000", "0.1", "-0.0005"});
}

// Every range of small numbers, each number of two decimals.
TEST_F(Rewritten, MultiplesWithinBoundsAreAllOfThemAndNoOthers) {
  std::mt19937 random(9);
  for (int round = 0; round < 12; ++round) {
    const int first = static_cast<int>(random() % 2600) - 1300, last = first + static_cast<int>(random() % 1500);
    const int step = std::array{1, 5, 25, 50}[random() % 4];
    const Json schema = {
        {"type", "number"}, {"multipleOf", step / 100.}, {"minimum", first / 100.}, {"maximum", last / 100.}};
    const auto grammar = compiler_->compile(GrammarPart::json(schema));
    if (!grammar.ok()) continue;  // a range without any
    for (int n = -1400; n <= 2900; n += 1 + static_cast<int>(random() % 7)) {
      std::string text = fmt::format("{}{}.{:02}", n < 0 ? "-" : "", std::abs(n) / 100, std::abs(n) % 100);
      while (text.back() == '0') text.pop_back();
      if (text.back() == '.') text.pop_back();
      if (n == 0) text = "0";
      EXPECT_EQ(is_taken(*grammar, text), n >= first && n <= last && n % step == 0) << schema << text;
    }
  }
}

TEST_F(Rewritten, ObjectsThatRequireWhatNobodyDescribes) {
  takes(R"({"type":"object","required":["a"]})", {R"({"a":1})", R"({"a":[]})"}, {"{}", R"({"b":1})"});
  takes(R"({"type":"object","required":["a"],"additionalProperties":{"type":"integer"}})", {R"({"a":1,"b":2})"},
        {R"({"a":"x"})", "{}"});
  takes(R"({"type":"object","properties":{"a":false,"b":true}})", {"{}", R"({"b":1})"}, {R"({"a":1})"});
  takes(
      R"({"type":"object","propertyNames":{"enum":["a","b"]},"additionalProperties":{"type":"integer"},"required":["a"]})",
      {R"({"a":1})", R"({"a":1,"b":2})"}, {"{}", R"({"b":1})", R"({"a":1,"c":1})", R"({"a":1,"a":1})"});
  takes(R"({"type":"object","properties":{"a":{"type":"null"}},"propertyNames":{"type":"string"}})", {R"({"a":null})"},
        {});
  refuses(R"({"type":"object","properties":{"a":false},"required":["a"]})", "'a' is required, and no value fits");
  refuses(R"({"type":"object","properties":{"a":false},"additionalProperties":true})", "'a' may not be there");
}

TEST_F(Rewritten, TuplesOfOlderDrafts) {
  takes(R"({"type":"array","items":[{"type":"string"},{"type":"integer"}],"minItems":2,"maxItems":2})", {R"(["a",1])"},
        {R"(["a"])", R"([1,"a"])", R"(["a",1,2])"}, false);
  takes(R"({"type":"array","items":[{"type":"string"}],"additionalItems":{"type":"integer"},"minItems":1})",
        {R"(["a"])", R"(["a",1,2])"}, {"[1]", R"(["a","b"])"}, false);
}

// A number's own expression is no word that a client may send.
TEST_F(Rewritten, NoFormatOfAClientIsAnExpression) {
  takes(R"({"type":"string","format":"\u0001.*"})", {R"("a")"}, {"a", "3"}, false);
}

// Numbers with bounds have six decimals at most. Bounds between two of them made a rule of nothing: `{"lr": }` was whole.
TEST_F(Rewritten, BoundsLeaveANumberOrAreRefused) {
  const char* const kNone = "no number of six decimals";
  refuses(R"({"type":"object","properties":{"lr":{"type":"number","minimum":1e-8,"maximum":1e-7}}})",
          "schema at /properties/lr: no number of six decimals at most is within its bounds");
  refuses(R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1e-6})", kNone);
  refuses(R"({"type":"number","exclusiveMinimum":1,"exclusiveMaximum":1.0000001})", kNone);
  refuses(R"({"type":["null","number"],"minimum":-1e-7,"exclusiveMaximum":0})", kNone);
  refuses(R"({"type":"number","minimum":3,"maximum":2})", kNone);
  refuses(R"({"type":"integer","minimum":0.2,"maximum":0.8})", "no integer is within its bounds");
  refuses(R"({"type":["integer","null"],"exclusiveMinimum":1,"exclusiveMaximum":2})",
          "no integer is within its bounds");
  refuses(R"({"type":"number","minimum":1e-8,"maximum":1e-7,"multipleOf":0.01})", "'multipleOf' 0.01");
  takes(R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":2e-6})", {"0.000001"},
        {"", "0", "0.000002", "0.0"});
  takes(R"({"type":"number","minimum":-1.23456789,"maximum":0.1234567})", {"-1.234567", "0.123456", "0"},
        {"-1.234568", "0.123457"});
  takes(R"({"type":"number","minimum":1e-8,"maximum":1})", {"0.000001", "1"}, {"0", "1.000001", "1e-7"});
  takes(R"({"type":"number","maximum":-1e-8})", {"-0.000001", "-7"}, {"0", "-0", "0.1"});
  takes(R"({"type":"number","minimum":1e40,"maximum":1e41})", {}, {"", "9", "-1e40"});
  takes(R"({"type":"integer","minimum":0.5,"exclusiveMaximum":2.5})", {"1", "2"}, {"0", "3", "1.5"});
  takes(R"({"type":"integer","exclusiveMinimum":-2.5,"maximum":-0.5})", {"-2", "-1"}, {"-3", "0"});
  takes(R"({"type":"integer","minimum":1.5,"maximum":8.2,"multipleOf":3})", {"3", "6"}, {"0", "9", "4"});
  takes(R"({"type":["integer","number"],"minimum":1.5,"maximum":2.5})", {"1.5", "2"}, {"1", "3"});
  takes(R"({"type":"integer","exclusiveMinimum":9007199254740992,"maximum":9007199254740993})", {"9007199254740993"},
        {"9007199254740992", "9007199254740994"}, false);
  takes(R"({"type":"number","multipleOf":0.01,"minimum":-1})", {"-1", "2.5"}, {"-1.01"});
  refuses(R"({"type":"number","multipleOf":0.01,"minimum":-9223372036854775808})", "'multipleOf' 0.01");
}

// Each range of the last decimals has exactly its numbers.
TEST_F(Rewritten, BoundsAreRoundedInward) {
  std::mt19937 random(4);
  int none = 0;
  for (int round = 0; round < 24; ++round) {
    const int first = static_cast<int>(random() % 400) - 200, last = first + 1 + static_cast<int>(random() % 12);
    const Json schema = {{"type", "number"}, {"minimum", first / 1e7}, {"maximum", last / 1e7}};  // tenths of a step
    const auto grammar = compiler_->compile(GrammarPart::json(schema));
    int inside = 0;
    for (int n = -30; n <= 30; ++n) {
      const bool fits = n * 10 >= first && n * 10 <= last;
      inside += fits;
      const std::string text = n == 0 ? "0" : fmt::format("{}0.{:06}", n < 0 ? "-" : "", std::abs(n));
      if (grammar.ok()) {
        EXPECT_EQ(is_taken(*grammar, text), fits) << schema << text;
      }
    }
    EXPECT_EQ(grammar.ok(), inside > 0) << schema;
    none += inside == 0;
  }
  EXPECT_GT(none, 1) << "power: some have none";
}

// A free key is none of those that are described, whatever they are made of and however it is written.
TEST_F(Rewritten, FreeKeysAreNotTheDescribedOnes) {
  for (const std::string rest : {R"("additionalProperties":true)", R"("additionalProperties":{"type":"string"})",
                                 R"("unevaluatedProperties":{"type":"string"})"}) {
    const std::string object =
        R"({"type":"object","properties":{"名前":{"type":"integer"},"é":{"type":"integer"},"ab":{"type":"integer"},)"
        R"("q\"u":{"type":"integer"},"b\\c":{"type":"integer"},"x/y":{"type":"integer"},"😀":{"type":"integer"}},)" +
        rest + "}";
    takes(object.c_str(),
          {R"({"名前":1,"é":2,"ab":3,"q\"u":4,"b\\c":5,"x/y":6,"😀":7,"名":"x","名前x":"x","a":"x","abc":"x"})",
           R"({"q":"x","b":"x","è":"x","x":"x","z\n":"x"})", R"({"😀":1,"😁":"x"})", "{}"},
          {R"({"名前":"x"})", R"({"é":"x"})", R"({"ab":"x"})", R"({"q\"u":"x"})", R"({"b\\c":"x"})", R"({"x/y":"x"})",
           R"({"😀":"x"})", R"({"\u0061b":"x"})", R"({"a\u0062":"x"})", R"({"\u540d\u524d":"x"})", R"({"x\/y":"x"})",
           R"({"q\u0022u":"x"})", R"({"\ud83d\ude00":"x"})"},
          rest.find("unevaluated") == std::string::npos);
  }
  takes(R"({"type":"object","properties":{"k\u0000x":{"type":"integer"}},"additionalProperties":true})",
        {R"({"k\u0000x":1,"k":"x"})"}, {R"({"k\u0000x":"x"})"});
}

TEST_F(Rewritten, NamesAndPatternsOfKeys) {
  for (const char* none : {"additionalProperties", "unevaluatedProperties"}) {
    takes(fmt::format(R"({{"type":"object","{}":false,"propertyNames":{{"maxLength":1}}}})", none).c_str(), {"{}"},
          {R"({"x":1})"}, false);
  }
  takes(R"({"type":"object","propertyNames":{"maxLength":1}})", {"{}", R"({"x":1})"}, {R"({"xy":1})"});
  refuses(R"({"type":"object","patternProperties":{"^[a-z]+$":{"type":"integer"}},"propertyNames":{"maxLength":1}})",
          "'propertyNames' beside 'patternProperties'");
  takes(R"({"type":"object","patternProperties":{"^[a-z]$":{"type":"null"}},"propertyNames":{"pattern":"^[a-z]$"}})",
        {R"({"x":null})"}, {R"({"x":1})", R"({"xy":null})"});
  const auto two = [](const char* first, const char* second, const char* schema = R"({"type":"string"})") {
    return fmt::format(R"({{"type":"object","patternProperties":{{"{}":{{"type":"integer"}},"{}":{}}}}})", first,
                       second, schema);
  };
  for (const auto& [first, second] : {std::pair("^[a-z]+$", "^x"), std::pair("a$", "b$"), std::pair("^ab*$", "^a+$"),
                                      std::pair("^ab?c$", "^ac$"), std::pair("^a|b$", "^b$"), std::pair("^x-", "^x-y$"),
                                      std::pair("^x{0,2}y$", "^y$"), std::pair("^\\\\d$", "^1$")})
    refuses(two(first, second).c_str(), "may fit one name");
  takes(two("^a_[a-z]+$", "^b_[a-z]*$").c_str(), {R"({"b_":"s","a_x":1})"}, {R"({"b_":1})", R"({"a_x":"s"})"});
  takes(two("^a\\\\.[a-z]+$", "^ab+$").c_str(), {R"({"a.x":1,"abb":"s"})"}, {R"({"abb":1})"});
  takes(two("^[a-z]+$", "^x", R"({"type":"integer"})").c_str(), {R"({"x":1,"b":2})"}, {R"({"x":"s"})"});
}

// As escapes and in UTF-8, in strings of any length and in keys.
TEST_F(Rewritten, NoStringHasHalfACharacter) {
  const std::vector<std::string> halves = {R"("\ud83d")",      R"("\ud83da")",     R"("\uDE00")",  R"("\ud83d\ud83d")",
                                           "\"\xED\xA0\x80\"", "\"\xED\xBF\xBF\"", R"("\ud83d\n")"};
  takes(R"({"type":"string"})",
        {R"("\ud83d\ude00")", R"("\uD83D\uDE00a")", R"("\ud7ff\ue000\uE9ab\u00e9")", "\"\xED\x9F\xBF\xEE\x80\x80😀é\""},
        halves, false);
  takes(R"({"type":"string","maxLength":9})", {"\"\xED\x9F\xBF\xEE\x80\x80😀é\""}, halves, false);
  takes(R"({"type":"string","pattern":"^[^x]+$"})", {"\"\xED\x9F\xBF\xEE\x80\x80😀é\""}, halves, false);
  std::vector<std::string> keys;
  for (const std::string& half : halves) keys.push_back("{" + half + ":1}");
  takes(R"({"type":"object"})", {R"({"\ud83d\ude00":1})"}, keys, false);
  takes(R"({"type":"object","properties":{"a":true},"additionalProperties":true})", {R"({"b\ud83d\ude00":1})"}, keys,
        false);
}

TEST_F(Rewritten, LargeIntegersStayAsTheyAre) {
  takes(R"({"const":18446744073709551615})", {"18446744073709551615"},
        {"1.8446744073709552e+19", "1844674407370955161"}, false);
  takes(R"({"enum":[9223372036854775808,{"a":["q\"\u00017",9223372036854775807]}]})",
        {"9223372036854775808", R"({"a":["q\"\u00017",9223372036854775807]})"}, {"9.2233720368547758e+18"}, false);
  takes(R"({"type":"object","properties":{"enum":{"const":9223372036854775809}},"required":["enum"]})",
        {R"({"enum":9223372036854775809})"}, {}, false);
  refuses(R"({"const":"\u00017"})", "begins with U+0001");
  refuses(R"({"oneOf":[{"const":18446744073709551615},{"type":"null"}]})", "use 'anyOf'");
}

TEST_F(Rewritten, WhatIsSettledStays) {
  for (
      const char* text :
      {R"({"type":"string","anyOf":[{"maxLength":2},{"minLength":4}]})",
       R"({"type":"array","items":{"enum":["a","b"]},"uniqueItems":true})", R"({"type":"number","multipleOf":0.01})",
       R"({"type":"string","pattern":"^a+$","maxLength":3})", R"({"type":"object","required":["a"]})",
       R"({"oneOf":[{"$ref":"#/$defs/c"},{"$ref":"#/$defs/d"}],"$defs":{"c":{"type":"object","properties":{"k":{"const":1}}},)"
       R"("d":{"type":"object","properties":{"k":{"const":2}}}}})"}) {
    Json schema = Json::parse(text);
    ASSERT_TRUE(settle_schema(schema).ok()) << text;
    const Json once = schema;
    EXPECT_TRUE(settle_schema(schema).ok()) << text;
    EXPECT_EQ(schema, once);
  }
}

}  // namespace
}  // namespace kvilt
