// Case files: what is read, and that mistakes are named with file, line and field.
#include <gtest/gtest.h>

#include "eval/case_file.h"
#include "eval/runner.h"
#include "eval/suite.h"

namespace kvilt {
namespace {

std::string problem(const std::string& text) {
  const auto read = parse_cases(text, "dir/my.jsonl", {});
  return read.ok() ? "" : read.error().message;
}

TEST(CaseFile, ARagCase) {
  const auto cases = parse_cases(
      "\n{\"id\": \"h1\", \"system\": \"S\", \"segments\": [{\"title\": \"T\", \"text\": \"x\"}, {\"text\": \"y\"}], "
      "\"question\": \"Q\", \"answers\": [\"A\"], \"metric\": \"em\", \"ignored\": 1}\n",
      "dir/my.jsonl", {});
  ASSERT_TRUE(cases.ok()) << cases.error().message;
  ASSERT_EQ(cases->size(), 1u);
  const EvalCase& one = (*cases)[0];
  EXPECT_EQ(one.suite, "my");
  EXPECT_EQ(one.id, "h1");
  EXPECT_EQ(one.lead, "Answer:");
  EXPECT_EQ(one.metric, Metric::kExact);
  ASSERT_EQ(one.turns.size(), 2u);
  const auto& parts = one.turns[1].parts;
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].text, "T\nx\n");
  EXPECT_EQ(parts[1].text, "y\n");
  EXPECT_TRUE(parts[0].known && parts[1].known && !parts[2].known);
  EXPECT_EQ(parts[2].text, "Q");
}

TEST(CaseFile, ADialogueGivesACaseATurn) {
  const auto cases = parse_cases(
      R"({"id": "d", "turns": [{"text": "one two three four", "question": "Q1", "answers": ["A1"], "query_at": "begin"},
          {"text": "five six seven eight", "question": "Q2", "answers": ["A2"], "query_at": "middle"}], "metric": "f1"})"
      "\n",
      "d.jsonl", {});
  EXPECT_FALSE(cases.ok()) << "a case is one line";
  const auto good = parse_cases(
      "{\"id\": \"d\", \"turns\": [{\"text\": \"one two three four\", \"question\": \"Q1\", \"answers\": [\"A1\"], "
      "\"query_at\": "
      "\"begin\"}, {\"text\": \"five six seven eight\", \"question\": \"Q2\", \"query_at\": \"middle\"}]}",
      "d.jsonl", {});
  ASSERT_TRUE(good.ok()) << good.error().message;
  ASSERT_EQ(good->size(), 2u);
  EXPECT_EQ((*good)[0].id, "d.1");
  EXPECT_EQ((*good)[0].turns.back().parts[0].text, "Q1\n");
  const auto& second = (*good)[1];
  ASSERT_EQ(second.turns.size(), 3u);
  EXPECT_EQ(second.turns[1].role, "assistant");
  EXPECT_EQ(second.turns[1].parts[0].text, "A1");
  const auto& parts = second.turns[2].parts;
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].text + parts[2].text, "five six seven eight");
  EXPECT_TRUE(parts[0].known && !parts[1].known && parts[2].known);
}

TEST(CaseFile, MistakesNameFileLineAndField) {
  EXPECT_EQ(problem("{\"segments\": [], \"question\": \"q\"}\nnonsense\n"), "dir/my.jsonl:2: is not JSON");
  EXPECT_EQ(problem("[]"), "dir/my.jsonl:1: must be an object");
  EXPECT_EQ(problem("{\"segments\": []}"), "dir/my.jsonl:1: 'question' is missing");
  EXPECT_EQ(problem("{\"segments\": [{\"title\": \"t\"}], \"question\": \"q\"}"),
            "dir/my.jsonl:1: 'segments[0].text' is missing");
  EXPECT_EQ(problem("{\"segments\": [{\"text\": 5}], \"question\": \"q\"}"),
            "dir/my.jsonl:1: 'segments[0].text' must be a string");
  EXPECT_EQ(problem("{\"segments\": [], \"question\": \"q\", \"metric\": \"bleu\"}"),
            "dir/my.jsonl:1: 'metric' must be f1, em, recall or contains");
  EXPECT_EQ(problem("{\"turns\": [{\"question\": \"q\", \"query_at\": \"top\"}]}"),
            "dir/my.jsonl:1: 'turns[0].query_at' must be begin, middle or end");
  EXPECT_EQ(problem("{\"segments\": [], \"question\": \"q\", \"answers\": \"a\"}"),
            "dir/my.jsonl:1: 'answers' must be an array of strings");
  EXPECT_EQ(problem("\n\n"), "dir/my.jsonl: holds no case");
}

TEST(Policies, LabelsAreParsed) {
  const auto policy = parse_policy("sparsex:l_star=0:k=0.1");
  ASSERT_TRUE(policy.ok());
  EXPECT_EQ(policy->choice.name, "sparsex");
  EXPECT_EQ(policy->choice.params.at("k"), "0.1");
  EXPECT_EQ(policy->label, "sparsex:l_star=0:k=0.1");
  EXPECT_FALSE(parse_policy("sparsex:k").ok());
}

TEST(SuiteParams, MistakesAreNamed) {
  auto params = SuiteParams::parse("niah:n=3,length=x,odd=1");
  ASSERT_TRUE(params.ok());
  EXPECT_EQ(params->number("n", 20, 1, 10), 3);
  EXPECT_EQ(params->number("length", 7, 1, 10), 7);
  EXPECT_EQ(params->finish().error().message, "suite 'niah': length is 'x', not a whole number from 1 to 10");
  auto odd = SuiteParams::parse("niah:odd=1");
  EXPECT_EQ(odd->finish().error().message, "suite 'niah' has no parameter 'odd'");
  EXPECT_FALSE(SuiteParams::parse("niah:n").ok());
}

}  // namespace
}  // namespace kvilt
