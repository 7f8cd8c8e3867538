// Constraints that were made to hurt: each is an error or a grammar that works, and the compiler lives on. Where the time
// ends is asserted with a limit of 0 s, at which the first look at the clock ends the work: so it is the work between two
// looks that is bounded, on any machine.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "grammar/compiler.h"
#include "grammar/schema_check.h"
#include "grammar/vocabulary_for_test.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

std::string times(int n, std::string_view text) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

struct Hostile {
  const char* name;
  GrammarPart part;
};

Json deep_schema(int levels) {
  Json schema = {{"type", "integer"}};
  for (int i = 0; i < levels; ++i) schema = {{"type", "array"}, {"items", std::move(schema)}};
  return schema;
}

Json wide_schema(int width) {
  Json schema = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < width; ++i) schema["properties"]["property_" + std::to_string(i)] = {{"type", "string"}};
  return schema;
}

Json doubling_schema(int levels) {  // each definition twice in the next: 2^levels places
  Json defs = {{"d0", {{"type", "integer"}}}};
  for (int i = 1; i <= levels; ++i) {
    const Json ref = {{"$ref", "#/$defs/d" + std::to_string(i - 1)}};
    defs["d" + std::to_string(i)] = {{"type", "array"}, {"prefixItems", {ref, ref}}, {"items", false}};
  }
  return {{"$ref", "#/$defs/d" + std::to_string(levels)}, {"$defs", std::move(defs)}};
}

// A union of two definitions, times over, at the bound of a schema's bytes; the last property tells them apart.
Json repeated_union(int n, Json a, Json b) {
  Json all = Json::array();
  for (int i = 0; i < n; ++i) all.push_back({{"oneOf", {{{"$ref", "#/a"}}, {{"$ref", "#/b"}}}}});
  return {{"anyOf", std::move(all)}, {"a", std::move(a)}, {"b", std::move(b)}};
}
// What stands for some names stands there for each of them, in each other.
Json in_each_name(int levels, const char* word) {
  Json schema = {{"type", "integer"}};
  for (int i = 0; i < levels; ++i) {
    Json outer = {{"type", "object"}, {"additionalProperties", std::move(schema)}};
    outer[word] = std::string_view(word) == "required" ? Json{"a", "b"} : Json{{"enum", {"a", "b"}}};
    schema = std::move(outer);
  }
  return schema;
}
// The type beside a $ref is looked for in all branches of branches.
Json branches_of_branches(int levels, int width) {
  Json defs = {{"a0", {{"type", "string"}}}};
  for (int i = 1; i <= levels; ++i) {
    defs["a" + std::to_string(i)]["anyOf"] =
        Json(static_cast<size_t>(width), Json{{"$ref", "#/$defs/a" + std::to_string(i - 1)}});
  }
  return {{"type", "string"}, {"$ref", "#/$defs/a" + std::to_string(levels)}, {"$defs", std::move(defs)}};
}
Json lists_of_large_items(int n) {
  Json properties = Json::object(), values = Json::array();
  for (char one = 'a'; one < 'f'; ++one) values.push_back(std::string(12'000, one));
  const Json list = {{"type", "array"}, {"uniqueItems", true}, {"items", {{"$ref", "#/$defs/a"}}}};
  for (int i = 0; i < n; ++i) properties["p" + std::to_string(i)] = list;
  return {{"type", "object"}, {"properties", std::move(properties)}, {"$defs", {{"a", {{"enum", std::move(values)}}}}}};
}
// Two values that are long lists, compared again and again; and one that is joined with nothing again and again.
Json compared_lists(int n, int length) {
  Json first = Json(static_cast<size_t>(length), Json::array()), second = first;
  second.push_back(1);
  return repeated_union(n, {{"const", std::move(first)}}, {{"const", std::move(second)}});
}
Json joined_with_nothing(int n, int values) {
  Json all = Json::array({{{"enum", Json::array()}}});
  for (int i = 0; i < values; ++i) all[0]["enum"].push_back(i);
  for (int i = 0; i < n; ++i) all.push_back({{"title", "nothing"}});
  return {{"allOf", std::move(all)}};
}
Json object_of(const Json& properties) {
  Json required = Json::array();
  for (const auto& [key, value] : properties.items()) required.push_back(key);
  return {{"type", "object"}, {"properties", properties}, {"required", std::move(required)}};
}
Json with_many_tags(int n, const char* last) {
  Json properties = Json::object();
  for (int i = 0; i < n; ++i) properties[fmt::format("{}", i)] = {{"const", 1}};
  properties["last"] = {{"const", last}};
  return object_of(properties);
}
Json with_many_values(int n, int first) {
  Json values = Json::array();
  for (int i = 0; i < n; ++i) values.push_back(first + i);
  return object_of({{"kind", {{"enum", std::move(values)}}}});
}

std::string chained_rules(int n) {
  std::string out = "root ::= r0\n";
  for (int i = 0; i < n; ++i) out += fmt::format("r{} ::= r{} | \"a\"\n", i, i + 1);
  return out + fmt::format("r{} ::= \"b\"\n", n);
}

std::vector<Hostile> hostile() {
  const auto regex = [](std::string text) { return GrammarPart::regex(text); };
  const auto ebnf = [](std::string text) { return GrammarPart::ebnf(text); };
  std::vector<Hostile> out = {
      {"a DFA of 2^40 states", regex("(a|b)*a" + times(40, "(a|b)"))},
      {"counts in counts", regex("(((a{999}){999}){999}){999}")},
      {"a large count", regex("[a-z]{1,999999999}")},
      {"a count beyond int", regex("a{99999999999999999999}")},
      {"many optional", regex(times(3000, "a?") + times(3000, "a"))},
      {"stars of stars", regex("((((a*)*)*)*)*b")},
      {"many alternatives of classes", regex("(" + times(2000, "[a-z][0-9]*|") + "x)*")},
      {"deep brackets", regex(times(20000, "(") + "a" + times(20000, ")"))},
      {"an open bracket", regex("(a")},
      {"a backreference", regex("(a)\\1")},
      {"a look ahead", regex("(?=a)b")},
      {"a NUL", regex(std::string("a\0b", 3))},
      {"not UTF-8", regex("a\xFF")},
      {"half a character", ebnf("root ::= \"\xC3\"")},
      {"no root", ebnf("start ::= \"a\"")},
      {"no rules", ebnf("hello")},
      {"an unknown rule", ebnf("root ::= nobody")},
      {"left recursion", ebnf("root ::= root \"a\" | \"b\"")},
      {"only itself", ebnf("root ::= root")},
      {"two that are each other", ebnf("root ::= a\na ::= b\nb ::= a")},
      {"nothing and itself", ebnf("root ::= \"\" | root root")},
      {"a chain of rules", ebnf(chained_rules(4000))},
      {"deep EBNF brackets", ebnf("root ::= " + times(20000, "(") + "\"a\"" + times(20000, ")"))},
      {"a large repetition", ebnf("root ::= \"abc\"{1,100000000}")},
      {"nested repetitions", ebnf("root ::= ((([a-z]{1000}){1000}){1000}){1000}")},
      {"deep", GrammarPart::json(deep_schema(60))},
      {"too deep", GrammarPart::json(deep_schema(500))},
      {"wide", GrammarPart::json(wide_schema(2000))},
      {"doubling", GrammarPart::json(doubling_schema(40))},
      {"endless", GrammarPart::json({{"$ref", "#"}})},
      {"endless list", GrammarPart::json({{"type", "array"}, {"items", {{"$ref", "#"}}}, {"minItems", 1}})},
      {"many items", GrammarPart::json({{"type", "array"}, {"items", {{"type", "object"}}}, {"minItems", 1000000}})},
      {"long strings", GrammarPart::json({{"type", "string"}, {"minLength", 1000000}, {"maxLength", 2000000}})},
      {"a pattern that explodes", GrammarPart::json({{"type", "string"}, {"pattern", "(a|b)*a(a|b){40}"}})},
      {"huge numbers", GrammarPart::json({{"type", "integer"}, {"minimum", -9e300}, {"maximum", 9e300}})},
      {"a NUL in a word", GrammarPart::word(std::string("a\0b", 3))},
      {"unions of many tags",
       GrammarPart::json(repeated_union(1900, with_many_tags(1000, "a"), with_many_tags(1000, "b")))},
      {"unions of many values",
       GrammarPart::json(repeated_union(1900, with_many_values(2000, 0), with_many_values(2000, 5000)))},
  };
  return out;
}

TEST(HostileGrammars, EndInAnErrorOrAGrammar) {
  const JsonVocabulary v;
  const auto compiler = v.compiler({.seconds = 2, .mask_seconds = 0.5});
  std::mt19937 random(3);
  int refused = 0;
  // Those that the budget ends, on machines that are slow enough, are not here.
  const std::map<std::string, const char*> says = {
      {"a count beyond int", "Integer is too large"},
      {"deep brackets", "more than 200 brackets"},
      {"an open bracket", "parenthesis is not closed"},
      {"a backreference", "Backreference is not supported"},
      {"a look ahead", "Lookahead is not supported"},
      {"a NUL", "a NUL byte"},
      {"not UTF-8", "not UTF-8"},
      {"half a character", "not UTF-8"},
      {"no root", "\"root\" is not found"},
      {"no rules", "\"root\" is not found"},
      {"an unknown rule", "\"nobody\" is not defined"},
      {"deep EBNF brackets", "more than 200 brackets"},
      {"too deep", "deeper than 64 levels"},
      {"wide", "more than 400000 states"},
      {"huge numbers", "exceeds minimum limit"},
      {"unions of many tags", "too many properties and values"},
      {"unions of many values", "too many properties and values"},
  };
  for (const Hostile& one : hostile()) {
    const auto made = compiler->compile(one.part);
    std::printf("%-32s %s\n", one.name, made.ok() ? "taken" : made.error().message.c_str());
    if (!made.ok()) {
      ++refused;
      EXPECT_EQ(made.error().code, Code::kInvalidArgument) << one.name;
      const char* wanted = says.contains(one.name) ? says.at(one.name) : "it takes more than 2 s";
      EXPECT_NE(made.error().message.find(wanted), std::string::npos) << one.name << ": " << made.error().message;
      continue;
    }
    EXPECT_FALSE(says.contains(one.name)) << one.name << " is taken";
    // It can be used, or says that it cannot.
    GrammarMatcher matcher(*made);
    std::vector<int32_t> mask(GrammarMatcher::mask_words(v.vocab));
    for (int i = 0; i < 50; ++i) {
      if (!matcher.fill(mask).ok()) break;
      std::vector<int32_t> ids;
      for (int32_t id = 0; id < v.vocab; ++id) {
        if (static_cast<uint32_t>(mask[static_cast<size_t>(id) / 32]) >> (id % 32) & 1u) ids.push_back(id);
      }
      if (ids.empty()) break;
      const int32_t id = ids[random() % ids.size()];
      if (id == v.end) break;
      const auto taken = matcher.accept(id);
      if (!taken.ok()) break;
      EXPECT_TRUE(*taken) << one.name;
    }
  }
  EXPECT_GT(refused, 15);
  EXPECT_TRUE(compiler->compile(GrammarPart::word("ab")).ok()) << "it lives";
}

GrammarPart hostile(const std::string& name) {
  for (const Hostile& one : hostile()) {
    if (one.name == name) return one.part;
  }
  ADD_FAILURE() << name;
  return GrammarPart::word("");
}

// What compile() says with these limits; empty: it has made a grammar.
std::string refused(const GrammarPart& part, GrammarLimits limits) {
  const JsonVocabulary v;
  const auto made = v.compiler(limits)->compile(part);
  return made.ok() ? "" : made.error().message;
}

TEST(HostileGrammars, TheTimeToCompileIsBounded) {
  for (const char* name : {"many optional", "a chain of rules", "many alternatives of classes"}) {
    EXPECT_NE(refused(hostile(name), {.seconds = 0}).find("it takes more than 0 s"), std::string::npos) << name;
  }
  EXPECT_EQ(refused(GrammarPart::word("ab"), {.seconds = 0}), "") << "power: this one ends before the first look";
}

// Before a grammar is made of it: that is in no budget.
TEST(HostileGrammars, TheWorkOnUnionsIsBounded) {
  const auto says = [](int n, int values) {
    Json schema = repeated_union(n, with_many_values(values, 0), with_many_values(values, 5000));
    const Status settled = settle_schema(schema);
    return settled.ok() ? std::string() : settled.error().message;
  };
  EXPECT_EQ(says(1900, 20), "") << "power";
  EXPECT_EQ(says(20, 2000), "") << "power";
  EXPECT_NE(says(1900, 2000).find("too many properties and values"), std::string::npos);
}

// What is copied and read again before that is in one bound. Power: small ones are taken.
TEST(HostileGrammars, WhatIsWrittenOtherwiseIsBounded) {
  const auto says = [](Json schema) {
    const Status settled = settle_schema(schema);
    return settled.ok() ? std::string() : settled.error().message;
  };
  for (const char* word : {"required", "propertyNames"}) {
    EXPECT_EQ(says(in_each_name(6, word)), "") << word;
    EXPECT_NE(says(in_each_name(25, word)).find("too many properties and values"), std::string::npos) << word;
  }
  EXPECT_EQ(says(branches_of_branches(3, 5)), "");
  EXPECT_NE(says(branches_of_branches(8, 100)), "");
  EXPECT_EQ(says(lists_of_large_items(1)), "");
  EXPECT_NE(says(lists_of_large_items(1000)).find("too many properties and values"), std::string::npos);
  EXPECT_NE(says(compared_lists(1900, 10'000)), "");
  EXPECT_EQ(says(joined_with_nothing(20, 200)), "");
  EXPECT_NE(says(joined_with_nothing(20'000, 20'000)).find("too large"), std::string::npos);
  Json prices = object_of({});
  for (int i = 0; i < 2000; ++i)
    prices["properties"]["p" + std::to_string(i)] = {{"type", "number"}, {"multipleOf", 1e-6}};
  EXPECT_EQ(says(prices), "") << "and soon";
}

TEST(HostileGrammars, WhatComesIntoBeingIsBounded) {
  const GrammarLimits patient{.seconds = 1e6};
  EXPECT_NE(refused(hostile("wide"), patient).find("more than 400000 states"), std::string::npos);
  EXPECT_EQ(refused(GrammarPart::json(wide_schema(20)), patient), "") << "power";
  for (const char* name : {"many optional", "a chain of rules", "many alternatives of classes", "long strings"}) {
    EXPECT_NE(refused(hostile(name), {.seconds = 1e6, .states = 100}).find("more than 100 states"), std::string::npos)
        << name;
  }
}

// Matching ambiguous ones takes time that grows with the text: it ends in an error, not in a step that never ends.
TEST(HostileGrammars, TheTimeOfAStepIsBounded) {
  const JsonVocabulary v;
  const auto compiler = v.compiler({.mask_seconds = 0});
  // Tokens that are taken until a step is over its time.
  const auto taken_of = [&](const char* ebnf) {
    const auto made = compiler->compile(GrammarPart::ebnf(ebnf));
    EXPECT_TRUE(made.ok()) << made.error().message;
    GrammarMatcher matcher(*made);
    std::vector<int32_t> mask(GrammarMatcher::mask_words(v.vocab));
    for (int i = 0; i < 300; ++i) {
      const Status filled = matcher.fill(mask);
      const auto taken = filled.ok() ? matcher.accept(1 + 'a') : filled.error();
      if (!taken.ok()) {
        EXPECT_EQ(taken.error().code, Code::kExhausted);
        EXPECT_NE(taken.error().message.find("too ambiguous"), std::string::npos) << taken.error().message;
        return i;
      }
      EXPECT_TRUE(*taken);
    }
    return 300;
  };
  EXPECT_LT(taken_of("root ::= s\ns ::= s s | s s s | \"a\""), 300);
  EXPECT_EQ(taken_of("root ::= \"a\"*"), 300) << "power: the same text, read in one way";
}

// Steps that are each within their time are together bounded too, by what the answer's tokens give.
TEST(HostileGrammars, TheTimeOfAllStepsIsBounded) {
  const JsonVocabulary v;
  struct Told {
    int taken = 0;
    std::string why;
  };
  const auto match = [&](const char* ebnf, double answer_seconds, double token_seconds) {
    const auto compiler =
        v.compiler({.mask_seconds = 1e6, .answer_seconds = answer_seconds, .token_seconds = token_seconds});
    const auto made = compiler->compile(GrammarPart::ebnf(ebnf));
    EXPECT_TRUE(made.ok()) << made.error().message;
    GrammarMatcher matcher(*made);
    std::vector<int32_t> mask(GrammarMatcher::mask_words(v.vocab));
    for (Told told;; ++told.taken) {
      const Status filled = matcher.fill(mask);
      const auto taken = filled.ok() ? matcher.accept(1 + 'a') : filled.error();
      if (!taken.ok()) {
        EXPECT_EQ(taken.error().code, Code::kExhausted);
        told.why = taken.error().message;
      }
      if (!taken.ok() || told.taken == 300) return told;
      EXPECT_TRUE(*taken);
    }
  };
  const char* ambiguous = "root ::= s\ns ::= s s | s s s | \"a\"";
  const char* plain = "root ::= \"a\"*";
  const Told over = match(ambiguous, .001, 0);
  EXPECT_LT(over.taken, 300);
  EXPECT_NE(over.why.find("the constraint is too ambiguous"), std::string::npos) << over.why;
  EXPECT_NE(over.why.find("took more than 0.001 s and 0 s a token"), std::string::npos) << over.why;
  EXPECT_EQ(match(plain, 0, 0).taken, 0) << "nothing is left before the first step";
  EXPECT_EQ(match(plain, 1e6, 0).taken, 300) << "power";
  EXPECT_EQ(match(plain, 0, 1e6).taken, 300) << "tokens bring time";
}

// A retry costs nothing for a while, and whatever is fine goes on.
TEST(HostileGrammars, WhatTookTooMuchIsRemembered) {
  const JsonVocabulary v;
  const auto many = hostile("many optional");
  for (const auto& [limits, says] : {std::pair(GrammarLimits{.seconds = 0}, "it takes more than 0 s"),
                                     std::pair(GrammarLimits{.seconds = 1e6, .states = 100}, "more than 100 states")}) {
    const auto compiler = v.compiler(limits);
    const auto first = compiler->compile(many), again = compiler->compile(many);
    ASSERT_FALSE(first.ok() || again.ok());
    EXPECT_NE(first.error().message.find(says), std::string::npos) << first.error().message;
    EXPECT_EQ(again.error().message, first.error().message);
    EXPECT_EQ(again.error().code, first.error().code);
    EXPECT_EQ(compiler->compiled(), 1u) << "it was not tried again";
    EXPECT_TRUE(compiler->compile(GrammarPart::word("ab")).ok());
    EXPECT_EQ(compiler->compiled(), 2u) << "power";
  }
  const auto forgets = v.compiler({.seconds = 0, .refused_seconds = 0});
  EXPECT_FALSE(forgets->compile(many).ok());
  EXPECT_FALSE(forgets->compile(many).ok());
  EXPECT_EQ(forgets->compiled(), 2u) << "the time is over";
}

TEST(HostileGrammars, ALargeOneIsRefusedByItsSize) {
  const JsonVocabulary v;
  const auto compiler = v.compiler({.bytes = 1000});
  EXPECT_TRUE(compiler->compile(GrammarPart::word(times(100, "a"))).ok());
  const auto made = compiler->compile(GrammarPart::word(times(1000, "a")));
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message.find("1000"), std::string::npos);
}

// Those that wait hold a connection each: one more is told so at once.
TEST(HostileGrammars, FewWaitForOthers) {
  const JsonVocabulary v;
  const auto compiler = v.compiler({.seconds = 1, .waiting = 0, .states = INT64_MAX});
  std::atomic<int> over{0};
  std::vector<std::thread> threads;
  for (const char* name : {"many optional", "a chain of rules"}) {
    threads.emplace_back([&, name] {
      const auto made = compiler->compile(hostile(name));
      EXPECT_FALSE(made.ok()) << name << ": it is to take all of its time";
      ++over;
    });
  }
  while (compiler->compiled() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto refused = compiler->compile(GrammarPart::word("ab"));
  EXPECT_EQ(over, 0) << "both of them work";
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kExhausted);
  EXPECT_EQ(refused.error().message, "0 constraints wait to be compiled already; try again");
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(compiler->compile(GrammarPart::word("ab")).ok());
}

// Several threads at once, of which some wait for a turn.
TEST(HostileGrammars, ComeFromManyThreads) {
  const JsonVocabulary v;
  const auto compiler = v.compiler();
  std::vector<std::thread> threads;
  std::atomic<int> good{0}, bad{0};
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) {
        good += compiler->compile(GrammarPart::word(fmt::format("w{}", (t + i) % 7))).ok();
        bad += !compiler->compile(GrammarPart::regex("(a")).ok();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 30);
  EXPECT_EQ(bad, 30);
}

}  // namespace
}  // namespace kvilt
