// Schemas as frameworks and tools' servers send them: each is enforced, with texts that fit and texts that do not. The
// first three are Pydantic 2.13's own words, the others are written after Zod 4's, zod-to-json-schema's (Zod 3), OpenAI's
// strict mode and the tools of MCP servers (files, GitHub, Slack).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/schema_validator_for_test.h"
#include "grammar/vocabulary_for_test.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

struct Sent {
  const char* who;
  const char* schema;
  std::vector<const char*> good, bad;
};

const std::vector<Sent>& sent() {
  static const std::vector<Sent> kAll = {
      {"Pydantic: an order",
       R"({"$defs":{"Color":{"enum":["red","blue"],"title":"Color","type":"string"},"Money":{"properties":{"amount":{"anyOf":)"
       R"([{"minimum":0.0,"type":"number"},{"type":"string"}],"title":"Amount"},"cents":{"minimum":0,"multipleOf":0.01,)"
       R"("title":"Cents","type":"number"}},"required":["amount","cents"],"title":"Money","type":"object"}},)"
       R"("additionalProperties":false,"properties":{"id":{"format":"uuid","title":"Id","type":"string"},)"
       R"("at":{"format":"date-time","title":"At","type":"string"},"code":{"maxLength":8,"minLength":3,)"
       R"("pattern":"^[A-Z]{3,}$","title":"Code","type":"string"},"slug":{"maxLength":32,"pattern":"^[a-z0-9-]+$",)"
       R"("title":"Slug","type":"string"},"colors":{"items":{"$ref":"#/$defs/Color"},"title":"Colors","type":"array",)"
       R"("uniqueItems":true},"items":{"items":{"type":"integer"},"maxItems":5,"minItems":1,"title":"Items","type":"array"},)"
       R"("step":{"minimum":0,"multipleOf":5,"title":"Step","type":"integer"},"opt":{"anyOf":[{"minLength":2,"type":"string"},)"
       R"({"type":"null"}],"default":null,"title":"Opt"},"pair":{"maxItems":2,"minItems":2,"prefixItems":[{"type":"integer"},)"
       R"({"type":"string"}],"title":"Pair","type":"array"},"lit":{"additionalProperties":{"type":"integer"},"propertyNames":)"
       R"({"enum":["a","b"]},"title":"Lit","type":"object"},"by_color":{"additionalProperties":{"type":"integer"},)"
       R"("propertyNames":{"$ref":"#/$defs/Color"},"title":"By Color","type":"object"},"color":{"$ref":"#/$defs/Color",)"
       R"("default":"red"},"money":{"$ref":"#/$defs/Money"}},"required":["id","at","code","slug","colors","items","step",)"
       R"("pair","lit","by_color","money"],"title":"Order","type":"object"})",
       {R"({"id":"123e4567-e89b-12d3-a456-426614174000","at":"2026-11-28T14:00:00Z","code":"ABC","slug":"a-1","colors":["red"],)"
        R"("items":[1],"step":15,"opt":null,"pair":[1,"a"],"lit":{"a":1},"by_color":{"blue":2},"color":"red",)"
        R"("money":{"amount":1.5,"cents":12.34}})"},
       {R"({"id":"123e4567-e89b-12d3-a456-426614174000","at":"2026-11-28T14:00:00Z","code":"ABC","slug":"a-1",)"
        R"("colors":["red","red"]})",
        R"({"id":"123e4567-e89b-12d3-a456-426614174000","at":"2026-11-28T14:00:00Z","code":"AB","slug":"a-1"})", "{}"}},
      {"Pydantic: a union with tags that have defaults",
       R"({"$defs":{"Cat":{"properties":{"kind":{"const":"cat","default":"cat","title":"Kind","type":"string"},"lives":)"
       R"({"default":9,"title":"Lives","type":"integer"}},"title":"Cat","type":"object"},"Dog":{"properties":{"kind":)"
       R"({"default":"dog","enum":["dog","hound"],"title":"Kind","type":"string"},"good":{"title":"Good","type":"boolean"}},)"
       R"("required":["good"],"title":"Dog","type":"object"}},"properties":{"pet":{"discriminator":{"mapping":{"cat":)"
       R"("#/$defs/Cat","dog":"#/$defs/Dog","hound":"#/$defs/Dog"},"propertyName":"kind"},"oneOf":[{"$ref":"#/$defs/Cat"},)"
       R"({"$ref":"#/$defs/Dog"}],"title":"Pet"}},"required":["pet"],"title":"Home","type":"object"})",
       {R"({"pet":{"kind":"cat","lives":3}})", R"({"pet":{"kind":"hound","good":true}})"},
       {R"({"pet":{"lives":3}})", R"({"pet":{"kind":"dog"}})", R"({"pet":{"kind":"cow"}})"}},
      {"Pydantic: a tree, links and addresses",
       R"({"$defs":{"Node":{"properties":{"name":{"title":"Name","type":"string"},"url":{"format":"uri","maxLength":2083,)"
       R"("minLength":1,"title":"Url","type":"string"},"mail":{"maxLength":100,"pattern":"^\\S+@\\S+$","title":"Mail",)"
       R"("type":"string"},"children":{"default":[],"items":{"$ref":"#/$defs/Node"},"title":"Children","type":"array"},)"
       R"("parent":{"anyOf":[{"$ref":"#/$defs/Node"},{"type":"null"}],"default":null}},"required":["name","url"],)"
       R"("title":"Node","type":"object"}},"$ref":"#/$defs/Node"})",
       {R"({"name":"a","url":"https://a.org/b?c=d","children":[{"name":"b","url":"http://b.de"}],"parent":null})"},
       {R"({"name":"a","url":""})", R"({"name":"a","url":"https://a.org","mail":"a b@c"})", R"({"name":"a"})"}},
      {"Zod 4: patterns beside formats, whole numbers, a record",
       R"({"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{"id":{"type":"string",)"
       R"("format":"uuid","pattern":"^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-)"
       R"([0-9a-fA-F]{12}|00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$"},"email":{"type":)"
       R"("string","format":"email","pattern":"^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+)"
       R"([A-Za-z]{2,}$"},"age":{"type":"integer","minimum":0,"maximum":9007199254740991},"price":{"type":"number",)"
       R"("multipleOf":0.01},"scores":{"type":"object","propertyNames":{"type":"string","enum":["a","b"]},)"
       R"("additionalProperties":{"type":"number"},"required":["a","b"]},"more":{"type":"object","propertyNames":{"type":)"
       R"("string"},"additionalProperties":{"type":"boolean"}}},"required":["id","email","price","scores"],)"
       R"("additionalProperties":false})",
       {R"({"id":"123e4567-e89b-42d3-a456-426614174000","email":"a.b@c.de","age":3,"price":1.25,"scores":{"a":1,"b":2},)"
        R"("more":{"x":true}})"},
       {R"({"id":"123e4567-e89b-42d3-a456-426614174000","email":"a..b@c.de"})",
        R"({"id":"123e4567-e89b-92d3-a456-426614174000"})",
        R"({"id":"123e4567-e89b-42d3-a456-426614174000","email":"a.b@c.de","price":1.255})",
        R"({"id":"123e4567-e89b-42d3-a456-426614174000","email":"a.b@c.de","price":1,"scores":{"a":1}})"}},
      {"zod-to-json-schema: unions, an intersection, what may not be there",
       R"({"type":"object","properties":{"kind":{"anyOf":[{"type":"object","properties":{"type":{"type":"string",)"
       R"("const":"a"},"x":{"type":"number"}},"required":["type","x"],"additionalProperties":false},{"type":"object",)"
       R"("properties":{"type":{"type":"string","const":"b"}},"required":["type"],"additionalProperties":false}]},)"
       R"("both":{"allOf":[{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]},{"type":"object",)"
       R"("properties":{"b":{"type":"number"}},"required":["b"]}]},"maybe":{"anyOf":[{"anyOf":[{"not":{}},{"type":"string"}]},)"
       R"({"type":"number"}]},"nil":{"type":["string","null"]},"rest":{"type":"object","additionalProperties":{"not":{}}}},)"
       R"("required":["kind","both"],"additionalProperties":false,"$schema":"http://json-schema.org/draft-07/schema#"})",
       {R"({"kind":{"type":"b"},"both":{"a":"x","b":1},"maybe":"y","nil":null,"rest":{}})"},
       {R"({"kind":{"type":"b"},"both":{"a":"x"}})", R"({"kind":{"type":"b","x":1}})",
        R"({"kind":{"type":"b"},"both":{"a":"x","b":1},"maybe":null})",
        R"({"kind":{"type":"b"},"both":{"a":"x","b":1},"rest":{"a":1}})"}},
      {"OpenAI's strict mode: all required, a tree",
       R"({"type":"object","properties":{"steps":{"type":"array","items":{"$ref":"#/$defs/step"}},"answer":{"type":["string",)"
       R"("null"]},"unit":{"anyOf":[{"type":"string","enum":["C","F"]},{"type":"null"}]}},"required":["steps","answer","unit"],)"
       R"("additionalProperties":false,"$defs":{"step":{"type":"object","properties":{"say":{"type":"string"},"inner":{)"
       R"("anyOf":[{"$ref":"#/$defs/step"},{"type":"null"}]}},"required":["say","inner"],"additionalProperties":false}}})",
       {R"({"steps":[{"say":"a","inner":{"say":"b","inner":null}}],"answer":null,"unit":"C"})"},
       {R"({"steps":[],"answer":null})", R"({"steps":[{"say":"a"}],"answer":null,"unit":"C"})"}},
      {"MCP: files, an edit",
       R"({"type":"object","properties":{"path":{"type":"string"},"edits":{"type":"array","items":{"type":"object",)"
       R"("properties":{"oldText":{"type":"string","description":"Text to search for - must match exactly"},"newText":{"type":)"
       R"("string"}},"required":["oldText","newText"],"additionalProperties":false}},"dryRun":{"type":"boolean","default":false},)"
       R"("head":{"type":"number","multipleOf":1}},"required":["path","edits"],"additionalProperties":false,)"
       R"("$schema":"http://json-schema.org/draft-07/schema#"})",
       {R"({"path":"a","edits":[{"oldText":"x","newText":""}],"dryRun":true,"head":3})"},
       {R"({"path":"a","edits":[{"oldText":"x"}]})", R"({"path":"a"})", R"({"path":"a","edits":[],"head":1.5})"}},
      {"MCP: GitHub, one of two is needed",
       R"({"type":"object","properties":{"owner":{"type":"string"},"issue_number":{"type":"number"},"title":{"type":"string"},)"
       R"("state":{"type":"string","enum":["open","closed"]},"perPage":{"type":"number","minimum":1,"maximum":100},)"
       R"("files":{"type":"array","items":{"type":"object","required":["path","content"],"properties":{"path":{"type":)"
       R"("string"},"content":{"type":"string"}},"additionalProperties":false}}},"required":["owner"],)"
       R"("anyOf":[{"required":["issue_number"]},{"required":["title"]}]})",
       {R"({"owner":"a","title":"t"})", R"({"owner":"a","issue_number":1,"perPage":30})"},
       {R"({"owner":"a"})", R"({"title":"t"})", R"({"owner":"a","title":"t","perPage":101})"}},
      {"MCP: Slack, a text or blocks",
       R"({"type":"object","properties":{"channel_id":{"type":"string","pattern":"^[CGD][A-Z0-9]{8,}$","maxLength":20},"text":{)"
       R"("oneOf":[{"type":"string","minLength":1},{"type":"array","items":{"type":"string"},"minItems":1}]},"limit":{"type":)"
       R"("integer","minimum":1,"maximum":1000,"default":100},"thread_ts":{"type":"string"}},"required":["channel_id","text"]})",
       {R"({"channel_id":"C12345678","text":"hi"})", R"({"channel_id":"C12345678","text":["a"],"limit":10})"},
       {R"({"channel_id":"X12345678","text":"hi"})", R"({"channel_id":"C12345678","text":""})",
        R"({"channel_id":"C12345678901234567890","text":"hi"})"}},
      {"Draft 7, a tuple and a reference with conditions beside it",
       R"({"type":"object","definitions":{"point":{"type":"array","items":[{"type":"number"},{"type":"number"}],"minItems":2,)"
       R"("maxItems":2},"id":{"type":"string","minLength":1}},"properties":{"at":{"allOf":[{"$ref":"#/definitions/point"}]},)"
       R"("id":{"$ref":"#/definitions/id","maxLength":4},"kind":{"type":"string","anyOf":[{"const":"a"},{"const":"b"}]}},)"
       R"("required":["at","id"]})",
       {R"({"at":[1,2],"id":"abcd","kind":"b"})"},
       {R"({"at":[1],"id":"a"})", R"({"at":[1,2],"id":"abcde"})", R"({"at":[1,2],"id":""})",
        R"({"at":[1,2],"id":"a","kind":"c"})"}},
  };
  return kAll;
}

bool is_written(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  GrammarMatcher matcher(grammar);
  return take_text(matcher, text) && matcher.may_end();
}

TEST(SchemasOfFrameworks, AreEnforced) {
  const JsonVocabulary v;
  const auto compiler = v.compiler();
  std::mt19937 random(17);
  for (const Sent& one : sent()) {
    SCOPED_TRACE(one.who);
    const Json schema = Json::parse(one.schema);
    const auto grammar = compiler->compile(GrammarPart::json(schema));
    if (!grammar.ok()) ADD_FAILURE() << grammar.error().message;
    if (!grammar.ok()) continue;
    for (const char* text : one.good) {
      EXPECT_TRUE(is_written(*grammar, text)) << text;
      EXPECT_TRUE(is_written(*grammar, Json::parse(text).dump(2))) << text;
    }
    for (const char* text : one.bad) EXPECT_FALSE(is_written(*grammar, text)) << text;
    int whole = 0;
    for (int i = 0; i < 10; ++i) {
      const auto text = random_text(v, *grammar, random);
      if (!text || !is_utf8(*text) || is_beyond_doubles(*text)) continue;
      const Json value = Json::parse(*text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << *text;
      ++whole;
      EXPECT_TRUE(SchemaValidator(schema).fits(value)) << *text;
    }
    EXPECT_GT(whole, 0);
  }
}

// What is sent, and is beyond a grammar: the place is named.
TEST(SchemasOfFrameworks, ThoseThatCannotBeAreRefusedWithTheirPlace) {
  const JsonVocabulary v;
  const auto compiler = v.compiler();
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type":"object","properties":{"tags":{"type":"array","items":{"type":"string"},"uniqueItems":true}}})",  // set[str]
       "schema at /properties/tags: 'uniqueItems'"},
      {R"({"type":"object","properties":{"n":{"type":"integer","multipleOf":3,"minimum":0}}})",
       "schema at /properties/n: 'multipleOf' 3"},
      {R"({"type":"object","properties":{"a":true,"b":true},"dependentRequired":{"a":["b"]}})", "'dependentRequired'"},
      {R"({"type":"object","properties":{"k":{"enum":["a","b"]}},"if":{"properties":{"k":{"const":"a"}}},"then":{"required":["x"]}})",
       "'if'"}};
  for (const auto& [schema, why] : cases) {
    const auto made = compiler->compile(GrammarPart::json(Json::parse(schema)));
    ASSERT_FALSE(made.ok()) << schema;
    EXPECT_NE(made.error().message.find(why), std::string::npos) << made.error().message;
  }
}

}  // namespace
}  // namespace kvilt
