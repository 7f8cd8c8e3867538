// The official JSON-Schema-Test-Suite (tests/data/json_schema_suite): of each schema that is not refused, what the grammar
// lets through is valid. No invalid value of the suite is written by it, however it is laid out, and random texts of it
// fit the schema.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <string>

#include "grammar/schema_validator_for_test.h"
#include "grammar/vocabulary_for_test.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Json> suite() {
  std::ifstream in("tests/data/json_schema_suite/draft2020-12.jsonl");
  std::vector<Json> out;
  for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line));
  return out;
}

// As models write it.
bool is_let_through(const std::shared_ptr<const Grammar>& grammar, const Json& value) {
  for (const std::string& text : {value.dump(), value.dump(2)}) {
    GrammarMatcher matcher(grammar);
    if (take_text(matcher, text) && matcher.may_end()) return true;
  }
  return false;
}

// Keywords that the second implementation does not know, and the grammars do.
bool is_known_to_validator(const Json& schema) {
  const std::string text = schema.dump();
  for (const char* word : {"$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "unevaluated", "format", "\\\\p{"}) {
    if (text.find(word) != std::string::npos) return false;
  }
  return true;
}

TEST(SchemaSuite, WhatIsLetThroughIsValid) {
  const std::vector<Json> cases = suite();
  ASSERT_EQ(cases.size(), 364u);
  const JsonVocabulary v;
  const auto compiler = v.compiler();
  std::mt19937 random(5);
  int compiled = 0, invalid = 0, valid = 0, let_through = 0, written = 0;
  for (const Json& one : cases) {
    const std::string name = one["file"].get<std::string>() + ": " + one["what"].get<std::string>();
    SCOPED_TRACE(name);
    const auto grammar = compiler->compile(GrammarPart::json(one["schema"]));
    if (!grammar.ok()) {
      EXPECT_EQ(grammar.error().code, Code::kInvalidArgument) << grammar.error().message;
      continue;
    }
    ++compiled;
    for (const Json& test : one["tests"]) {
      const bool through = is_let_through(*grammar, test[0]);
      if (test[1].get<bool>()) {
        ++valid;
        let_through += through;
      } else {
        ++invalid;
        EXPECT_FALSE(through) << test[0];
      }
    }
    if (!is_known_to_validator(one["schema"])) continue;
    for (int i = 0; i < 3; ++i) {
      const auto text = random_text(v, *grammar, random);
      if (!text || !is_utf8(*text)) continue;
      if (std::regex_search(*text, std::regex("[eE][+]?[0-9]{3}"))) continue;  // JSON, and beyond any double
      const Json value = Json::parse(*text, nullptr, false);
      EXPECT_FALSE(value.is_discarded()) << *text;
      if (value.is_discarded()) continue;
      ++written;
      EXPECT_TRUE(SchemaValidator(one["schema"]).fits(value)) << *text;
    }
  }
  std::printf(
      "%d of %zu schemas compiled; %d of %d valid values let through, none of %d invalid ones; %d random texts\n",
      compiled, cases.size(), let_through, valid, invalid, written);
  EXPECT_GT(compiled, 100);
  EXPECT_GT(invalid, 150);
  EXPECT_GT(let_through, 150) << "power: valid ones are";
  EXPECT_GT(written, 100);
}

}  // namespace
}  // namespace kvilt
