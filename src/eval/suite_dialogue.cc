// eval/suite_dialogue.cc: dialogues of several turns: each brings new text, and a question before, in the middle of or
// after it.
// Idea:     LoopServe (arXiv:2507.13681, section 5.1) asks at all three places, since methods that choose keys by the
//           last rows know the question only where it stands there.
// dialogue: turns are cases of another suite, their pieces the text; those before the last are answered with the first
//           right answer, or with the true text that follows. The last turn is the case.
// mt-bench: two turns of MT-bench (Zheng et al., arXiv:2306.05685), the first answered as the reference does; a
//           question without a reference is left out. Distances only: its own score takes a judge.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "eval/case_file.h"
#include "eval/json_lines.h"
#include "eval/suite.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxBenchBytes = size_t{64} << 20;

// Cuts a piece in its middle and returns its second half, which is empty where the piece is a single word or token.
CasePart take_half(CasePart& first) {
  CasePart second = first;
  const auto cut = [](std::string& front, std::string& back) {
    const size_t at = middle_of(front);
    back = front.substr(at);
    front.resize(at);
  };
  cut(first.text, second.text);
  cut(first.was, second.was);
  const auto half = static_cast<long>((first.ids.size() + 1) / 2);
  second.ids.assign(first.ids.begin() + half, first.ids.end());
  first.ids.resize(static_cast<size_t>(half));
  return second;
}

// Puts the question where half of the pieces are before it, into the only one where there is no other.
void ask_in_the_middle(std::vector<CasePart>& parts, CasePart question) {
  if (std::ranges::count(parts, true, &CasePart::known) != 1) {
    parts.insert(parts.begin() + static_cast<long>(parts.size() / 2), std::move(question));
    return;
  }
  const auto piece = std::ranges::find(parts, true, &CasePart::known);
  CasePart second = take_half(*piece);
  question.text = "\n" + question.text;
  const auto at = parts.insert(piece + 1, std::move(question));
  if (!second.text.empty() || !second.ids.empty()) parts.insert(at + 1, std::move(second));
}

// The user's turn of a RAG case with its question elsewhere.
Result<CaseTurn> user_turn(EvalCase& from, const std::string& at) {
  CaseTurn& last = from.turns.back();
  if (last.parts.size() < 2) return error(Code::kInvalidArgument, "suite 'dialogue': {} has no text", from.id);
  CasePart question = std::move(last.parts.back());
  last.parts.pop_back();
  if (at != "end") question.text += "\n";
  if (at == "end") {
    last.parts.push_back(std::move(question));
  } else if (at == "begin") {
    last.parts.insert(last.parts.begin(), std::move(question));
  } else {
    ask_in_the_middle(last.parts, std::move(question));
  }
  return std::move(last);
}

// What the assistant said to a turn: its first right answer; to one without answers the true text behind it.
Result<std::string> answer_of(const Engine& engine, const EvalCase& of) {
  if (!of.answers.empty()) return of.answers[0];
  return engine.detokenize(of.truth);
}

// By question, the first turn of the reference's answer.
Result<std::map<int, std::string>> first_answers(const std::string& path) {
  KVILT_ASSIGN(const std::string text, read_file(path, kMaxBenchBytes));
  std::map<int, std::string> out;
  KVILT_TRY(each_json_line(text, path, [&](const Json& line, int) -> Result<bool> {
    try {
      out[line.at("question_id").get<int>()] = line.at("choices").at(0).at("turns").at(0).get<std::string>();
    } catch (const nlohmann::json::exception& problem) {
      return error(Code::kInvalidArgument, "needs question_id and choices of turns: {}", problem.what());
    }
    return true;
  }));
  return out;
}

}  // namespace

Result<std::vector<CaseSource>> make_dialogue(Engine& engine, SuiteParams& params) {
  const std::string of = params.text("of", "multihop"), at = params.text("at", "end");
  const int turns = params.number("turns", 3, 1, 100), n = params.number("n", 20, 1, 100000);
  const std::string as = params.text("as", fmt::format("{}-{}", of, at));
  if (at != "begin" && at != "middle" && at != "end")
    return error(Code::kInvalidArgument, "suite 'dialogue': at is '{}', not begin, middle or end", at);
  if (of == "dialogue" || of == "mt-bench")
    return error(Code::kInvalidArgument, "suite 'dialogue': of is '{}', which is no suite of single questions", of);
  KVILT_ASSIGN(const std::string inner, params.rest_for(of, n * turns));
  KVILT_ASSIGN(const std::vector<CaseSource> sources, make_suite(engine, inner));
  std::vector<CaseSource> out;
  for (size_t first = 0; first + static_cast<size_t>(turns) <= sources.size(); first += static_cast<size_t>(turns)) {
    const std::vector<CaseSource> mine(sources.begin() + static_cast<long>(first),
                                       sources.begin() + static_cast<long>(first) + turns);
    std::string made_of;
    for (const CaseSource& source : mine) {
      if (!source.made_of.empty()) made_of += fmt::format("{} {}: {}\n", at, source.id, source.made_of);
    }
    out.push_back({as, mine.back().id,
                   [=, &engine]() -> Result<EvalCase> {
                     std::vector<CaseTurn> said;
                     for (const CaseSource& source : mine) {
                       KVILT_ASSIGN(EvalCase next, source.make());
                       if (said.empty() && next.turns.size() > 1) said.push_back(next.turns.front());  // the system's
                       KVILT_ASSIGN(CaseTurn user, user_turn(next, at));
                       said.push_back(std::move(user));
                       if (&source != &mine.back()) {
                         KVILT_ASSIGN(std::string answer, answer_of(engine, next));
                         said.push_back({"assistant", {{std::move(answer)}}});
                         continue;
                       }
                       next.suite = as;
                       next.turns = std::move(said);
                       return next;
                     }
                     return error(Code::kInternal, "no turns");
                   },
                   made_of});
  }
  if (out.empty())
    return error(Code::kInvalidArgument, "suite 'dialogue': {} cases of '{}' give no dialogue of {} turns",
                 sources.size(), of, turns);
  return out;
}

Result<std::vector<CaseSource>> make_mt_bench(Engine& engine, SuiteParams& params) {
  const std::string path = params.needed_text("path"), answers = params.needed_text("answers");
  const int n = params.number("n", 20, 1, 100000);
  const std::string as = params.text("as", "mt-bench");
  KVILT_TRY(params.finish());
  KVILT_ASSIGN(const auto first, first_answers(answers));
  KVILT_ASSIGN(const std::string text, read_file(path, kMaxBenchBytes));
  std::vector<CaseSource> out;
  KVILT_TRY(each_json_line(text, path, [&](const Json& line, int) -> Result<bool> {
    EvalCase made;
    try {
      const auto known = first.find(line.at("question_id").get<int>());
      if (known == first.end()) return true;
      made.suite = as;
      made.id = std::to_string(known->first);
      made.turns = {{"user", {{line.at("turns").at(0).get<std::string>()}}},
                    {"assistant", {{known->second}}},
                    {"user", {{line.at("turns").at(1).get<std::string>()}}}};
    } catch (const nlohmann::json::exception& problem) {
      return error(Code::kInvalidArgument, "needs question_id and two turns: {}", problem.what());
    }
    out.push_back({as, made.id, [made]() -> Result<EvalCase> { return made; }});
    return static_cast<int>(out.size()) < n;
  }));
  if (out.empty()) return error(Code::kInvalidArgument, "{}: no question has an answer in {}", path, answers);
  return out;
}

}  // namespace kvilt
