#include "server/json_fields.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvilt::server {
namespace {

TEST(ParseJson, ReadsJson) {
  auto json = parse_json(R"({"a": [1, 2.5, "x\u00e9"], "b": null})");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json.value()["a"][2], "x\xc3\xa9");
}

TEST(ParseJson, RefusesWhatIsNot) {
  for (const char* text : {"", "{", "{\"a\": }", "{\"a\": NaN}", "[1,]", "{'a': 1}", "\xff", "\"\xc3\x28\"",
                           "\"\\ud800\"", "{\"a\": Infinity}", "{} {}", "\"abc", "tru", "01", "[\"\\x\"]"}) {
    auto json = parse_json(text);
    ASSERT_FALSE(json.ok()) << text;
    EXPECT_EQ(json.error().status, 400);
    EXPECT_EQ(json.error().code, "invalid_json");
  }
  EXPECT_FALSE(parse_json("{\"a\": 1e999}").ok());
}

TEST(ParseJson, BoundsDepth) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(parse_json(nested(64)).ok());
  EXPECT_FALSE(parse_json(nested(65)).ok());
  EXPECT_FALSE(parse_json(std::string(5'000'000, '[')).ok());
  EXPECT_FALSE(parse_json([] {
                 std::string text;
                 for (int i = 0; i < 100000; ++i) text += "{\"a\":";
                 return text;
               }())
                   .ok());
  EXPECT_TRUE(parse_json("\"" + std::string(1000, '[') + "\"").ok());  // brackets in a string do not nest
  EXPECT_TRUE(parse_json(R"("\"[[[")").ok());
}

TEST(ParseJson, BoundsMembersAndValues) {
  const auto object = [](int members) {
    std::string text = "{";
    for (int i = 0; i < members; ++i) text += (i ? ",\"" : "\"") + std::to_string(i) + "\":1";
    return text + "}";
  };
  EXPECT_TRUE(parse_json(object(1024)).ok());
  EXPECT_FALSE(parse_json(object(1025)).ok());
  JsonLimits few;
  few.values = 10;
  EXPECT_TRUE(parse_json("[1,2,3,4,5,6,7,8,9]", few).ok());
  EXPECT_FALSE(parse_json("[1,2,3,4,5,6,7,8,9,10]", few).ok());
  std::string ids = "[1";
  for (int i = 0; i < 100000; ++i) ids += ",1";
  EXPECT_TRUE(parse_json(ids + "]").ok());  // lists may be long
}

TEST(Integers, ExactOnly) {
  const auto read = [](const char* text) { return as_integer(Json::parse(text), -10, 1000); };
  EXPECT_EQ(read("5"), 5);
  EXPECT_EQ(read("5.0"), 5);
  EXPECT_EQ(read("-10"), -10);
  EXPECT_EQ(read("-11"), std::nullopt);
  EXPECT_EQ(read("1001"), std::nullopt);
  EXPECT_EQ(read("5.5"), std::nullopt);
  EXPECT_EQ(read("1e300"), std::nullopt);
  EXPECT_EQ(read("18446744073709551615"), std::nullopt);
  EXPECT_EQ(read("true"), std::nullopt);
  EXPECT_EQ(read("\"5\""), std::nullopt);
}

TEST(Dump, NeverInvalidUtf8) {
  const std::string text = dump(Json{{"a", "x\xff\xc3"}});
  EXPECT_TRUE(parse_json(text).ok());
}

TEST(FieldsTest, FirstErrorStays) {
  const Json object = Json::parse(R"({"a": "x", "b": "y"})");
  Fields fields(object, "outer.");
  int number = 3;
  fields.integer("a", 0, 5, &number);
  fields.integer("b", 0, 5, &number);
  ASSERT_TRUE(fields.error().has_value());
  EXPECT_EQ(fields.error()->param, "outer.a");
  EXPECT_EQ(number, 3);
}

// A key of an ordered object is compared with all before it: 2.5 s of CPU for a body of 16 MiB.
TEST(ParseJson, BoundsTheWorkOfManyLargeObjects) {
  std::string object = "{\"0\":0";
  for (int i = 1; i < 1000; ++i) object += ",\"" + std::to_string(i) + "\":0";
  object += "}";
  std::string some = "[" + object, many = "[" + object;
  for (int i = 1; i < 50; ++i) some += "," + object;
  for (int i = 1; i < 150; ++i) many += "," + object;
  EXPECT_TRUE(parse_json(some + "]").ok());
  const auto refused = parse_json(many + "]");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("many members"), std::string::npos);
}

}  // namespace
}  // namespace kvilt::server
