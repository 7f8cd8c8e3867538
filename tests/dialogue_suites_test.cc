// The suites of dialogues (eval/suite_dialogue.cc): the same for a seed, the question where it was asked for, as many
// cases and turns as were asked for, and what is said of files that are not there or are of another form.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "engine_harness.h"
#include "eval/prompt.h"
#include "eval/suite.h"
#include "probe_prompts.h"

namespace kvilt {
namespace {

class DialogueSuites : public testing::Test {
 protected:
  std::vector<EvalCase> cases(const std::string& suite) const {
    const auto sources = make_suite(*engine, suite);
    EXPECT_TRUE(sources.ok()) << suite << ": " << sources.error().message;
    std::vector<EvalCase> out;
    for (const CaseSource& source : *sources) {
      const auto made = source.make();
      EXPECT_TRUE(made.ok()) << made.error().message;
      EXPECT_EQ(made->suite, source.suite);
      EXPECT_EQ(made->id, source.id);
      EXPECT_TRUE(case_prompt(*engine, *made).ok());
      out.push_back(*made);
    }
    return out;
  }
  std::string refusal(const std::string& suite) const {
    const auto sources = make_suite(*engine, suite);
    EXPECT_FALSE(sources.ok()) << suite;
    return sources.ok() ? "" : sources.error().message;
  }
  static std::string text_of(const EvalCase& of) {
    std::string out;
    for (const CaseTurn& turn : of.turns) {
      out += "<" + turn.role + ">";
      for (const CasePart& part : turn.parts) out += part.text + "|";
    }
    return out;
  }
  std::string file(const std::string& name, const std::string& text) {
    const std::string path = testing::TempDir() + "/dialogue_suites_" + name;
    std::ofstream(path) << text;
    files.push_back(path);
    return path;
  }
  void TearDown() override {
    for (const std::string& path : files) std::remove(path.c_str());
  }

  const std::unique_ptr<Engine> engine = open_for_test({.model = kModel});
  std::vector<std::string> files;
};

const std::string kNeedles = "dialogue:of=niah,length=200,segments=4,keys=1";

TEST_F(DialogueSuites, AreTheSameForASeed) {
  const auto texts = [&](const std::string& more) {
    std::string out;
    for (const EvalCase& one : cases(kNeedles + ",n=2,turns=2" + more)) out += text_of(one);
    return out;
  };
  EXPECT_EQ(texts(""), texts(""));
  EXPECT_EQ(texts(",seed=5"), texts(",seed=5"));
  EXPECT_NE(texts(",seed=5"), texts(",seed=6"));
  const std::vector<EvalCase> two = cases(kNeedles + ",n=2,turns=2");
  EXPECT_NE(text_of(two.at(0)), text_of(two.at(1)));
}

// A story has no answers: what was said to an earlier turn is how it goes on.
TEST_F(DialogueSuites, EarlierTurnsOfStoriesAreAnsweredWithTheTrueText) {
  std::string novel;
  for (int i = 0; i < 6000; ++i) novel += "stup vig stir clak plem kob . ";
  const std::string story = "story:n=2,length=120,truth=8,path=" + file("novel.txt", novel);
  const EvalCase two = cases("dialogue:of=" + story.substr(0, 5) + ",turns=2,n=1" + story.substr(9)).at(0);
  const auto sources = make_suite(*engine, story);
  ASSERT_TRUE(sources.ok());
  const std::string said = *engine->detokenize((*sources)[0].make()->truth);
  ASSERT_FALSE(said.empty());
  const auto answer = std::ranges::find(two.turns, "assistant", &CaseTurn::role);
  ASSERT_NE(answer, two.turns.end());
  EXPECT_EQ(answer->parts.at(0).text, said);
}

TEST_F(DialogueSuites, HaveAsManyCasesAndTurnsAsWereAskedFor) {
  for (const auto& [n, turns] : {std::pair{1, 1}, {3, 1}, {2, 3}}) {
    const auto made = cases(kNeedles + ",n=" + std::to_string(n) + ",turns=" + std::to_string(turns));
    EXPECT_EQ(std::ssize(made), n);
    for (const EvalCase& one : made) {
      EXPECT_EQ(one.suite, "niah-end");
      ASSERT_EQ(std::ssize(one.turns), 2 * turns) << "the system's, then user and assistant in turn, the user last";
      for (size_t t = 0; t < one.turns.size(); ++t) {
        EXPECT_EQ(one.turns[t].role, t == 0 ? "system" : t % 2 == 1 ? "user" : "assistant");
        if (t % 2 == 1) {
          EXPECT_EQ(std::ssize(one.turns[t].parts), 4 + 1) << "pieces and question";
        }
      }
    }
  }
}

// The turns of a dialogue are cases of the other suite, in their order; those before the last have their answers.
TEST_F(DialogueSuites, TheQuestionIsWhereItWasAskedFor) {
  const std::vector<EvalCase> single = cases("niah:n=3,length=200,segments=4,keys=1");
  for (const auto& [at, place] : {std::pair{"begin", 0}, {"middle", 2}, {"end", 4}}) {
    SCOPED_TRACE(at);
    const EvalCase one = cases(kNeedles + ",n=1,turns=3,at=" + at).at(0);
    EXPECT_EQ(one.suite, std::string("niah-") + at);
    for (int turn = 0; turn < 3; ++turn) {
      std::vector<CasePart> parts = one.turns.at(static_cast<size_t>(1 + 2 * turn)).parts;
      for (int i = 0; i < std::ssize(parts); ++i) EXPECT_EQ(parts[static_cast<size_t>(i)].known, i != place) << i;
      std::vector<std::string> expected;
      for (const CasePart& part : single[static_cast<size_t>(turn)].turns.back().parts) expected.push_back(part.text);
      const std::string question = expected.back() + (place == 4 ? "" : "\n");
      EXPECT_EQ(parts[static_cast<size_t>(place)].text, question);
      expected.pop_back();
      parts.erase(parts.begin() + place);
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(parts[i].text, expected[i]);
      if (turn < 2) {
        EXPECT_EQ(one.turns.at(static_cast<size_t>(2 + 2 * turn)).parts.at(0).text,
                  single[static_cast<size_t>(turn)].answers.at(0));
      }
    }
    EXPECT_EQ(one.answers, single[2].answers) << "what is asked last is the case";
  }
}

// A turn with one piece has its question in that, and one of several pieces between two of them.
TEST_F(DialogueSuites, AQuestionInTheMiddleOfOnePieceCutsIt) {
  const std::string one_piece = "niah:n=2,length=200,segments=1,keys=1";
  const std::vector<EvalCase> single = cases(one_piece);
  const auto asked = [&](const std::string& at) {
    return cases("dialogue:of=niah,turns=2,n=1" + one_piece.substr(8) + ",at=" + at).at(0);
  };
  const EvalCase middle = asked("middle");
  for (size_t turn = 0; turn < 2; ++turn) {
    const std::vector<CasePart>& parts = middle.turns.at(1 + 2 * turn).parts;
    const std::vector<CasePart>& from = single[turn].turns.back().parts;
    ASSERT_EQ(from.size(), 2u);
    ASSERT_EQ(parts.size(), 3u);
    EXPECT_TRUE(parts[0].known && !parts[1].known && parts[2].known);
    EXPECT_EQ(parts[0].text + parts[2].text, from[0].text) << "nothing is lost";
    EXPECT_EQ(parts[1].text, "\n" + from[1].text + "\n");
    const auto half = from[0].text.size() / 2;
    EXPECT_GE(parts[0].text.size(), half);
    EXPECT_LT(parts[0].text.size(), half + 30) << "a word ends there";
    EXPECT_EQ(parts[0].text.find_last_of(" \n"), parts[0].text.size() - 1);
  }
  EXPECT_NE(text_of(middle), text_of(asked("begin")));
}

// A story's piece is tokens, and stands behind a sentence that is none.
TEST_F(DialogueSuites, AStoryOfOnePieceIsCutBetweenTokens) {
  std::string novel;
  for (int i = 0; i < 6000; ++i) novel += "stup vig stir clak plem kob . ";
  const std::string path = file("one.txt", novel);
  const std::string story = "n=1,turns=1,length=121,piece=121,truth=8,path=" + path;
  const std::vector<CasePart> end = cases("dialogue:of=story,at=end," + story).at(0).turns.back().parts;
  const std::vector<CasePart> parts = cases("dialogue:of=story,at=middle," + story).at(0).turns.back().parts;
  ASSERT_EQ(end.size(), 3u);
  ASSERT_EQ(parts.size(), 4u) << "a sentence, half of the piece, the question, the other half";
  EXPECT_TRUE(!parts[0].known && parts[1].known && !parts[2].known && parts[3].known);
  EXPECT_EQ(parts[1].ids.size(), 61u);
  EXPECT_EQ(join({parts[1].ids, parts[3].ids}), end[1].ids);
}

TEST_F(DialogueSuites, WhatIsWrongIsNamed) {
  EXPECT_NE(refusal(kNeedles + ",at=front").find("at is 'front', not begin, middle or end"), std::string::npos);
  EXPECT_NE(refusal(kNeedles + ",turns=0").find("turns is '0', not a whole number from 1"), std::string::npos);
  EXPECT_NE(refusal("dialogue:of=mt-bench").find("'mt-bench', which is no suite of single questions"),
            std::string::npos);
  EXPECT_NE(refusal("dialogue:of=nothing").find("no suite 'nothing'"), std::string::npos);
  EXPECT_NE(refusal(kNeedles + ",colour=red").find("has no parameter 'colour'"), std::string::npos);
  EXPECT_NE(refusal("dialogue:of=multihop").find("path is missing"), std::string::npos);
  EXPECT_NE(refusal("dialogue:of=multihop,path=/nowhere/q.jsonl").find("/nowhere/q.jsonl"), std::string::npos);
  const std::string few = file("few.jsonl", R"({"id": "q", "question": "?", "answers": ["a"], )"
                                            R"("chunks": [{"title": "t", "text": "a .", "is_supporting": true}]})"
                                            "\n");
  EXPECT_NE(refusal("dialogue:of=multihop,turns=2,path=" + few).find("1 cases of 'multihop' give no dialogue of 2"),
            std::string::npos);
}

std::string bench_line(int id, const std::string& first, const std::string& second) {
  return R"({"question_id": )" + std::to_string(id) + R"(, "turns": [")" + first + R"(", ")" + second + R"("]})" + "\n";
}
std::string answer_line(int id, const std::string& first) {
  return R"({"question_id": )" + std::to_string(id) + R"(, "choices": [{"turns": [")" + first + R"(", "later"]}]})" +
         "\n";
}

TEST_F(DialogueSuites, MtBenchAsksTheSecondTurnBehindTheReference) {
  const std::string questions =
      file("q.jsonl", bench_line(81, "one", "and one") + bench_line(82, "two", "and two") +
                          bench_line(83, "three", "and three") + bench_line(84, "four", "and four"));
  const std::string answers = file("a.jsonl", answer_line(84, "iv") + answer_line(81, "i") + answer_line(83, "iii"));
  const std::string suite = "mt-bench:path=" + questions + ",answers=" + answers;
  const std::vector<EvalCase> all = cases(suite), two = cases(suite + ",n=2");
  ASSERT_EQ(all.size(), 3u) << "82 has no reference";
  EXPECT_EQ(two.size(), 2u);
  EXPECT_EQ(text_of(all[0]), "<user>one|<assistant>i|<user>and one|");
  EXPECT_EQ(text_of(all[1]), "<user>three|<assistant>iii|<user>and three|");
  EXPECT_EQ(text_of(all[2]), "<user>four|<assistant>iv|<user>and four|");
  for (size_t i = 0; i < two.size(); ++i) EXPECT_EQ(text_of(two[i]), text_of(all[i]));
  EXPECT_EQ(all[1].id, "83");
  EXPECT_EQ(all[1].suite, "mt-bench");
  EXPECT_TRUE(all[1].answers.empty()) << "distances only";
  EXPECT_EQ(cases(suite + ",as=judged").at(0).suite, "judged");
}

TEST_F(DialogueSuites, MtBenchNamesWhatIsWrong) {
  const std::string questions = file("q.jsonl", bench_line(81, "one", "and one"));
  const std::string answers = file("a.jsonl", answer_line(81, "i"));
  const auto with = [&](const std::string& q, const std::string& a) {
    return refusal("mt-bench:path=" + q + ",answers=" + a);
  };
  EXPECT_NE(refusal("mt-bench:path=" + questions).find("answers is missing"), std::string::npos);
  EXPECT_NE(refusal("mt-bench:answers=" + answers).find("path is missing"), std::string::npos);
  EXPECT_NE(with("/nowhere/q.jsonl", answers).find("/nowhere/q.jsonl"), std::string::npos);
  EXPECT_NE(with(questions, "/nowhere/a.jsonl").find("/nowhere/a.jsonl"), std::string::npos);
  EXPECT_NE(with(file("other.jsonl", bench_line(99, "x", "y")), answers).find("no question has an answer in"),
            std::string::npos);
  const std::string broken = file("broken.jsonl", bench_line(80, "x", "y") + R"({"question_id": 81})" + "\n");
  const std::string said = with(broken, answers);
  EXPECT_NE(said.find(broken + ":2: needs question_id and two turns"), std::string::npos) << said;
  EXPECT_NE(with(questions, file("torn.jsonl", "{")).find("torn.jsonl:1: is not JSON"), std::string::npos);
}

}  // namespace
}  // namespace kvilt
