// White space of JSON texts: what is foreseen of a text is what it has, once it has shown how it is laid out.
#include "grammar/json_space.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvilt {
namespace {

// Of the text's runs of white space outside of strings, empty ones too, how many were foreseen behind the first `from` bytes.
struct Count {
  int right = 0, all = 0;
};
Count foreseen(const std::string& text, size_t from = 0) {
  JsonSpace space;
  Count out;
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    const size_t next = in_string ? i : std::min(text.find_first_not_of(" \n", i), text.size());
    if (!in_string && i >= from && next < text.size()) {
      ++out.all;
      out.right += space.before(text[next]) == text.substr(i, next - i);
    }
    in_string = text[next] == '"' ? !in_string : in_string;
    space.read(text.substr(i, next + 1 - i));
    i = next + 1;
  }
  return out;
}

const nlohmann::ordered_json kValue = {
    {"name", "a, {b: [c"},
    {"list", {1, 2, 3}},
    {"inner", {{"x", true}, {"y", nullptr}, {"deep", {{"z", {{{"k", 1}, {"l", 2}}, {{"k", 3}, {"l", 4}}}}}}}},
    {"end", nlohmann::ordered_json::array()}};

TEST(JsonSpace, OneLineIsForeseenFromTheStart) {
  const std::string text = R"({"name": "a, {b: [c", "list": [1, 2], "inner": {"x": true, "y": null}, "end": []})";
  const Count seen = foreseen(text);
  EXPECT_GT(seen.all, 30);
  EXPECT_EQ(seen.right, seen.all);
}

TEST(JsonSpace, OtherLayoutsOnceTheyWereSeen) {
  for (const int indent : {-1, 1, 2, 4}) {
    const std::string text = nlohmann::ordered_json({kValue, kValue}).dump(indent);
    const Count all = foreseen(text), later = foreseen(text, text.size() / 2 + 4);
    EXPECT_GT(later.all, 60);
    EXPECT_GE(later.right + 1, later.all) << indent;
    EXPECT_LT(all.right + 1, all.all) << "power: " << indent << " has to be learned";
    EXPECT_GE(all.right * 10, all.all * 9) << indent;
  }
}

// Whatever comes, there is a guess, and it is white space.
TEST(JsonSpace, OtherTexts) {
  const std::vector<std::string> texts = {"}}}]]]]",          "{{{[[[\"",  "\\\"\\",
                                          ",,,::: \n\t\r ::", "<think>\"", std::string(100, '[')};
  for (const std::string& text : texts) {
    JsonSpace space;
    space.read(text);
    for (const char next : {'"', '}', ']', '1', ',', '\0'}) {
      EXPECT_EQ(space.before(next).find_first_not_of(" \n"), std::string::npos) << text;
      EXPECT_LT(space.before(next).size(), 1000u);
    }
  }
  JsonSpace broken;
  broken.read("{\n");
  EXPECT_EQ(broken.before('"'), "") << "it cannot know yet how far in";
  broken.read("    \"a\":1,");
  EXPECT_EQ(broken.before('"'), "\n    ");
  broken.read("\n ");
  EXPECT_EQ(broken.before('"'), "   ") << "what is still to come of it";
}

}  // namespace
}  // namespace kvilt
