#include "grammar/schema_check.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

std::string wrong_with(const char* text) {
  Json schema = Json::parse(text);
  const Status status = settle_schema(schema);
  return status.ok() ? "" : status.error().message;
}

TEST(SchemaCheck, TakesWhatIsHeldTo) {
  for (
      const char* text :
      {"true", "{}", R"({"type":"object","properties":{"not":{"type":"string"},"if":{"enum":[1]}}})",
       R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"null"}},"description":"d","title":"t"})",
       R"({"enum":[1,"a"],"type":["integer","string"]})", R"({"type":"string","format":"nobody-knows"})",
       R"({"type":"array","items":{"$ref":"#"},"uniqueItems":false})", R"({"properties":{"a":true},"required":["a"]})",
       R"({"type":"object","properties":{},"patternProperties":{"^a":true},"propertyNames":{"pattern":"^a"}})",
       R"({"type":"object","properties":{"a":true},"patternProperties":{},"propertyNames":true})",
       R"({"type":"object","additionalProperties":true,"minProperties":1})",
       R"({"type":"object","properties":{"a":true},"required":["a"],"additionalProperties":true,"minProperties":2})",
       R"({"type":"object","properties":{"a":true,"b":true,"c":true},"additionalProperties":false,"minProperties":2})"})
    EXPECT_EQ(wrong_with(text), "") << text;
}

TEST(SchemaCheck, RefusesWhatWouldBePassedOver) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"({"not":{"type":"string"}})", "'not' is not supported"},
      {R"({"type":"array","uniqueItems":true})", "'uniqueItems'"},
      {R"({"contains":false})", "'contains' is not supported"},  // no list has what fits false
      {R"({"type":"object","properties":{"a":{"if":{}}}})", "at /properties/a: 'if'"},
      {R"({"anyOf":[{"type":"string"}],"type":"null"})", "no value fits"},
      {R"({"$ref":"#/$defs/a","minimum":3})", "leads to nothing"},
      {R"({"anyOf":[],"oneOf":[]})", "not empty"},
      {R"({"allOf":[{"pattern":"a"},{"pattern":"b"}],"type":"string"})", "two conditions 'pattern'"},
      {R"({"minLength":3})", "needs \"type\": \"string\""},
      {R"({"items":{},"minimum":3})", "needs \"type\": \"number\""},
      {R"({"type":"object","required":["a"],"additionalProperties":false})", "'a' is required"},
      {R"({"type":"object","properties":{"a":true},"patternProperties":{"^a":true}})", "'patternProperties' beside"},
      {R"({"type":"object","properties":{"a":true},"propertyNames":{"pattern":"^a"}})", "'propertyNames' beside"},
      {R"({"type":"object","additionalProperties":true,"minProperties":2})", "'minProperties' of more than 1"},
      {R"({"type":"object","patternProperties":{"^a":true},"minProperties":2})", "'minProperties' of more than 1"},
      {R"({"type":"object","minProperties":2})", "'minProperties' of more than 1"},
      {R"({"type":"object","properties":{"a":true},"required":["a"],"additionalProperties":true,"minProperties":3})",
       "'minProperties' of more than 2"},
      {R"({"type":"object","required":3})", "must be a list"},
      {R"({"const":"a","type":"integer"})", "no value"},
      {R"({"enum":["a"],"type":"integer"})", "no value"},
      {R"({"$ref":"http://x/y"})", "is not inside"},
      {R"({"$ref":"#/$defs/a~1b"})", "escapes"},
      {R"({"type":"array","items":3})", "must be an object or a boolean"},
      {R"({"type":[]})", "type is an empty list"},
      {R"({"anyOf":[{"type":"null"},{"type":[]}]})", "at /anyOf/1: type is an empty list"},
      {"3", "must be an object or a boolean"}};
  for (const auto& [text, why] : kCases)
    EXPECT_NE(wrong_with(text).find(why), std::string::npos) << text << ": " << wrong_with(text);
}

TEST(SchemaCheck, TypeBesideEnumIsMetAndTakenOut) {
  Json schema = Json::parse(R"({"enum":[1,"a",2.5],"type":"integer"})");
  ASSERT_TRUE(settle_schema(schema).ok());
  EXPECT_EQ(schema, Json::parse(R"({"enum":[1]})"));
}

// A union of two definitions, `cat` and `dog`; more: what follows the list.
std::string union_of(const std::string& cat, const std::string& dog, const std::string& more = "") {
  return R"({"oneOf":[{"$ref":"#/$defs/cat"},{"$ref":"#/$defs/dog"})" + more + R"(],"$defs":{"cat":)" + cat +
         R"(,"dog":)" + dog + R"(,"of_dogs":{"enum":["dog",true,3]},"again":{"$ref":"#/$defs/cat"}}})";
}
std::string tagged(const std::string& tag) {
  return R"({"type":"object","properties":{"n":{"type":"integer"},"kind":)" + tag + R"(},"required":["n","kind"]})";
}

TEST(SchemaCheck, OneOfDefinitionsThatExcludeEachOtherIsAnyOfThem) {
  const std::string cat = tagged(R"({"const":"cat"})"), dog = tagged(R"({"enum":["dog","hound"],"type":"string"})");
  for (const std::string& text :
       {union_of(cat, dog), union_of(cat, tagged(R"({"$ref":"#/$defs/of_dogs"})")),
        union_of(tagged(R"({"const":1})"), tagged(R"({"const":"1"})")),
        union_of(cat, dog, "," + tagged(R"({"const":"cow"})")), union_of(cat, R"({"type":"string"})"),
        // A cat has its kind, and where this one has one it is another.
        union_of(cat, R"({"type":"object","properties":{"kind":{"const":"dog"}}})")}) {
    Json schema = Json::parse(text);
    const Json branches = schema["oneOf"];
    const Status settled = settle_schema(schema);
    ASSERT_TRUE(settled.ok()) << text << settled.error().message;
    EXPECT_FALSE(schema.contains("oneOf")) << text;
    EXPECT_EQ(schema["anyOf"].size(), branches.size()) << text;
    const Json once = schema;
    EXPECT_TRUE(settle_schema(schema).ok());
    EXPECT_EQ(schema, once) << "for good";
  }
  Json inner = {{"type", "array"},
                {"items", {{"oneOf", Json::parse(union_of(cat, dog))["oneOf"]}}},
                {"$defs", Json::parse(union_of(cat, dog))["$defs"]}};
  ASSERT_TRUE(settle_schema(inner).ok());
  EXPECT_TRUE(inner["items"].contains("anyOf")) << "refs begin at the root";
  Json plain = Json::parse(R"({"oneOf":[{"type":"string"},{"type":"null"}]})");
  const Json before = plain;
  ASSERT_TRUE(settle_schema(plain).ok());
  EXPECT_EQ(plain, before) << "those are the grammar's matter";
}

TEST(SchemaCheck, OneOfDefinitionsThatMayBothFitIsRefused) {
  const std::string cat = tagged(R"({"const":"cat"})"), dog = tagged(R"({"const":"dog"})");
  EXPECT_EQ(wrong_with(union_of(cat, dog).c_str()), "") << "power";
  for (const std::string& text :
       {union_of(cat, cat), union_of(cat, tagged(R"({"enum":["dog","cat"]})")),
        union_of(cat, tagged(R"({"type":"string"})")),
        union_of(cat, R"({"properties":{"kind":{"const":"dog"}},"required":["kind"]})"),  // it may be no object
        union_of(tagged(R"({"const":1})"), tagged(R"({"const":1.0})")),
        union_of(cat, dog, R"(,{"$ref":"#/$defs/again"})"), union_of(cat, dog, R"(,{"$ref":"#"})"),
        union_of(cat, dog, R"(,{"$ref":"#/$defs/nobody"})"), union_of(cat, R"({"$ref":"#/$defs/dog"})")}) {
    const std::string nested = R"({"type":"object","properties":{"pet":)" + text + "}}";
    EXPECT_NE(wrong_with(text.c_str()).find("schema: 'oneOf' is supported only of"), std::string::npos)
        << text << wrong_with(text.c_str());
    EXPECT_NE(wrong_with(nested.c_str()).find("schema at /properties/pet: 'oneOf'"), std::string::npos)
        << nested << wrong_with(nested.c_str());
  }
}

// Of a schema that no keyword holds nothing is passed over either.
TEST(SchemaCheck, WhatOnlyARefLeadsToIsSettledToo) {
  const auto with = [](const std::string& ref, const std::string& c) {
    return wrong_with((R"({"type":"object","properties":{"p":{"$ref":")" + ref + R"("}},"components":{"a":)" +
                       R"({"type":"array","items":{"$ref":"#/components/b"}},"b":{"$ref":"#/components/c"},"c":)" + c +
                       "}}")
                          .c_str());
  };
  EXPECT_EQ(with("#/components/a", R"({"type":"string"})"), "");
  EXPECT_EQ(with("#/components/a", R"({"contains":{"type":"string"}})"),
            "schema at /components/c: 'contains' is not supported");
  EXPECT_EQ(with("#/properties/p", R"({"contains":{"type":"string"}})"), "") << "power: nothing leads there";
  EXPECT_NE(with("#/components/x", "true").find("'#/components/x' leads to nothing"), std::string::npos);
  EXPECT_NE(with("#/components/a/type", "true").find("at /components/a/type: must be an object"), std::string::npos);
  for (const char* empty : {"#/components//a", "#/$defs/", "#/"})
    EXPECT_NE(with(empty, "true").find("has an empty name"), std::string::npos) << empty;
  Json many = {{"type", "object"}, {"properties", Json::object()}, {"x", Json::object()}};
  for (int i = 0; i < 65; ++i) {
    const std::string name = "n" + std::to_string(i);
    many["properties"][name] = {{"$ref", "#/x/" + name}};
    many["x"][name] = {{"title", "t"}, {"type", "null"}};
    Json settled = many;
    EXPECT_EQ(settle_schema(settled).ok(), i < 64) << i;
    EXPECT_EQ(settled["x"][name].contains("title"), i == 64);
  }
}

// A value that is no schema would be changed, and properties that are named as annotations would be lost.
TEST(SchemaCheck, RefsLeadToSchemas) {
  const auto with = [](const std::string& ref) {
    Json schema =
        Json::parse(R"({"type":"object","properties":{"p":{"$ref":")" + ref + R"("},"const":{"type":"null"},)" +
                    R"("x":{"const":{"title":1}},"e":{"enum":[{"default":1}]},)" +
                    R"("title":{"anyOf":[{"type":"string"},{"type":"null"}]},)" +
                    R"("o":{"type":"object","properties":{"default":true}}},"$defs":{"enum":{"type":"null"}}})");
    const Status settled = settle_schema(schema);
    return settled.ok() ? std::string() : settled.error().message;
  };
  for (const char* good : {"#", "#/properties/const", "#/$defs/enum", "#/properties/title", "#/properties/o",
                           "#/properties/o/properties/default"})
    EXPECT_EQ(with(good), "") << good;
  for (const char* value : {"#/properties/x/const", "#/properties/e/enum", "#/properties/o/default", "#/examples/0",
                            "#/components/a/const/b"}) {
    EXPECT_EQ(with(value), std::string("schema at /properties/p: $ref '") + value +
                               "' leads to what a keyword holds as a value: put the schema into $defs");
  }
  for (const char* names : {"#/properties", "#/$defs", "#/properties/o/properties", "#/components/a/definitions"}) {
    EXPECT_EQ(with(names), std::string("schema at /properties/p: $ref '") + names +
                               "' leads to schemas by name, and not to one of them: put the schema into $defs");
  }
  for (const char* list :
       {"#/oneOf/0", "#/properties/title/anyOf/1", "#/properties/title/anyOf", "#/components/allOf/0"}) {
    EXPECT_EQ(with(list), std::string("schema at /properties/p: $ref '") + list +
                              "' leads into a list, which is not supported: put the schema into $defs");
  }
}

// They would begin at the schema that has the $id; here they begin at the root.
TEST(SchemaCheck, RefsInsideAnotherDocumentAreRefused) {
  const auto with = [](const std::string& inner) {
    return wrong_with((R"({"$id":"http://k/root","type":"object","properties":{"$id":{"$ref":"#/$defs/c"},"a":)" +
                       inner + R"(},"$defs":{"c":{"$id":"http://k/c","type":"string"}}})")
                          .c_str());
  };
  const std::string id = R"("$id":"http://k/a")", refers = R"("properties":{"b":{"$ref":"#/$defs/c"}})";
  EXPECT_EQ(with(R"({"type":"object",)" + refers + "}"), "") << "power: the same without an $id";
  EXPECT_EQ(with("{" + id + R"(,"type":"object"})"), "");
  EXPECT_EQ(with(R"({"$id":"#a","type":"object",)" + refers + "}"), "") << "a name";
  EXPECT_EQ(with(R"({"const":{)" + id + R"(,"$ref":"#"}})"), "") << "a value";
  const std::string what = ": it has an $id, so the $refs inside begin there";
  EXPECT_NE(with("{" + id + R"(,"type":"object",)" + refers + "}").find("schema at /properties/a" + what),
            std::string::npos);
  EXPECT_NE(with(R"({"anyOf":[{"type":"null"},{)" + id + R"(,"type":"object",)" + refers + "}]}")
                .find("schema at /properties/a/anyOf/1" + what),
            std::string::npos);
}

TEST(SchemaCheck, AValueThatIsListedTwiceIsOne) {
  const std::string cat = tagged(R"({"enum":["cat","cat"]})"), dog = tagged(R"({"enum":["dog","hound","dog"]})");
  EXPECT_EQ(wrong_with(union_of(cat, dog).c_str()), "");
  EXPECT_NE(wrong_with(union_of(cat, tagged(R"({"enum":["dog","dog","cat"]})")).c_str()), "") << "power";
}

// xgrammar does not follow a tag's $ref either.
TEST(SchemaCheck, OneOfSchemasWhoseTagsAreRefsIsAnyOfThem) {
  const auto settled = [](const std::string& first, const std::string& second) {
    Json schema = Json::parse(R"({"oneOf":[)" + first + "," + second + R"(],"$defs":{"cat":{"const":"cat"},)" +
                              R"("dog":{"enum":["dog"]}}})");
    EXPECT_TRUE(settle_schema(schema).ok());
    return schema;
  };
  const std::string cat = tagged(R"({"$ref":"#/$defs/cat"})"), dog = tagged(R"({"$ref":"#/$defs/dog"})");
  EXPECT_TRUE(settled(cat, dog).contains("anyOf"));
  EXPECT_TRUE(settled(cat, cat).contains("oneOf")) << "power: the grammar refuses it";
}

TEST(SchemaCheck, ANameMayHoldANul) {
  const auto with = [](const char* first, const char* second) {
    const std::string kind = R"("kind\u0000x")";
    const auto object = [&](const char* tag) {
      return R"({"type":"object","properties":{"kind":{"const":")" + std::string(tag) + R"("},)" + kind +
             R"(:{"type":"string"}},"required":[)" + kind + "]}";
    };
    Json schema = Json::parse(union_of(object(first), object(second)));
    const Status settled = settle_schema(schema);
    return settled.ok() ? schema["$defs"]["cat"]["required"] : Json(settled.error().message);
  };
  const Json both = {std::string("kind\0x", 6), "kind"};
  EXPECT_EQ(with("cat", "dog"), both) << "its beginning is another name, which tells them apart from now on";
  EXPECT_TRUE(with("cat", "cat").is_string()) << "power: an error";
}

TEST(SchemaCheck, ALeastLengthThatAFormatHasAnywayIsTakenOut) {
  const auto kept = [](const char* rest) {
    Json schema = Json::parse(std::string(R"({"type":"string",)") + rest + "}");
    EXPECT_TRUE(settle_schema(schema).ok()) << rest;
    return schema.contains("minLength");
  };
  EXPECT_FALSE(kept(R"("format":"email","minLength":1)"));
  EXPECT_FALSE(kept(R"("format":"date-time","minLength":0)"));
  EXPECT_FALSE(kept(R"("format":"uri-reference","minLength":0)"));
  EXPECT_TRUE(kept(R"("format":"uri-reference","minLength":1)")) << "an empty one is one";
  EXPECT_TRUE(kept(R"("format":"email","minLength":2)"));
  EXPECT_TRUE(kept(R"("format":"nobody-knows","minLength":1)"));
  EXPECT_TRUE(kept(R"("minLength":1)"));
  EXPECT_FALSE(kept(R"("format":"email","pattern":"^a*$","minLength":1)")) << "the pattern has it now";
}

TEST(SchemaCheck, AnnotationsAreTakenOut) {
  Json schema = Json::parse(
      R"({"title":"T","$schema":"s","type":"object","properties":{"title":{"type":"string","description":"d"},)"
      R"("default":{"const":{"title":1}}},"examples":[1]})");
  ASSERT_TRUE(settle_schema(schema).ok());
  EXPECT_EQ(schema, Json::parse(R"({"type":"object","properties":{"title":{"type":"string"},)"
                                R"("default":{"const":{"title":1}}}})"))
      << "properties of these names stay";
}

TEST(SchemaCheck, HasADepth) {
  const auto nested = [](int n) {
    Json schema = {{"type", "integer"}};
    for (int i = 0; i < n; ++i) schema = {{"type", "array"}, {"items", std::move(schema)}};
    return schema;
  };
  Json good = nested(kMostSchemaLevels - 1), deep = nested(kMostSchemaLevels);
  EXPECT_TRUE(settle_schema(good).ok());
  EXPECT_FALSE(settle_schema(deep).ok());
}

}  // namespace
}  // namespace kvilt
