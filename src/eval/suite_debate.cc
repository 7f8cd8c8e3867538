// eval/suite_debate.cc: prompts that hold other agents' generated answers. The model writes them, under policy full,
// when the case is made; --warm context computes each as it was written (after its author's own prompt), --warm system
// as a document.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "eval/json_lines.h"
#include "eval/prompt.h"
#include "eval/suite.h"
#include "kvilt/ask.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kAgents = 3;

// The request `from` and what the model answers, `tokens` tokens at most.
Result<PastRequest> write_answer(Engine& engine, const EvalCase& from, int tokens) {
  PastRequest out;
  KVILT_ASSIGN(out.prompt, case_prompt(engine, from));
  Request request;
  request.prompt = out.prompt;
  request.policy.name = "full";
  request.publish = false;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = tokens;
  KVILT_ASSIGN(const Answered answered, ask(engine, std::move(request)));
  out.answer = answered.ids;
  if (out.answer.empty()) return error(Code::kUnsupported, "suite '{}': the model gave an empty answer", from.suite);
  return out;
}

CasePart written(const PastRequest& past) {
  CasePart out{"", true};
  out.ids = past.answer;
  return out;
}

// `question` to an agent who has read `before`.
EvalCase asked_after(const std::string& system, const std::vector<CasePart>& before, const std::string& question) {
  EvalCase out = rag_case(system, {}, question);
  auto& parts = out.turns.back().parts;
  parts.insert(parts.begin(), before.begin(), before.end());
  return out;
}

struct Problem {
  std::string question, answer;
};

// GSM8K: {"question", "answer": "... #### 18"}.
Result<std::vector<Problem>> read_problems(const std::string& path, int n) {
  std::vector<Problem> out;
  KVILT_TRY(each_question_of_file(path, [&](const Json& entry, int) -> Result<bool> {
    const auto text = [&](const char* key) -> std::string {
      const bool given = entry.is_object() && entry.contains(key) && entry[key].is_string();
      return given ? entry[key].get<std::string>() : "";
    };
    const std::string question = text("question"), answer = text("answer");
    const size_t mark = answer.rfind("#### ");
    if (question.empty() || mark == std::string::npos)
      return error(Code::kInvalidArgument, "needs 'question' and an 'answer' that ends with #### NUMBER");
    out.push_back({question, answer.substr(mark + 5)});
    return static_cast<int>(out.size()) < n;
  }));
  return out;
}

struct Debate {
  std::vector<PastRequest> first_round;
};

const char* persona(int agent) {
  static const char* const kPersonas[kAgents] = {
      "You are a careful mathematician. You solve problems step by step.",
      "You are a teacher. You explain each calculation in a short sentence.",
      "You are an engineer. You write down the numbers and compute with them."};
  return kPersonas[agent];
}

Status first_round(Engine& engine, const Problem& problem, int tokens, Debate& debate) {
  for (int agent = static_cast<int>(debate.first_round.size()); agent < kAgents; ++agent) {
    EvalCase alone = rag_case(persona(agent), {}, problem.question);
    alone.suite = "debate";
    alone.lead = "";
    KVILT_ASSIGN(PastRequest past, write_answer(engine, alone, tokens));
    debate.first_round.push_back(std::move(past));
  }
  return {};
}

EvalCase second_round(const Problem& problem, const Debate& debate, int agent) {
  std::vector<CasePart> before{{problem.question + "\n\nYour solution:\n"}, written(debate.first_round[agent])};
  for (int other = 0; other < kAgents; ++other) {
    if (other == agent) continue;
    before.push_back({"\n\nAnother agent's solution:\n"});
    before.push_back(written(debate.first_round[other]));
  }
  EvalCase out = asked_after(persona(agent), before,
                             "\nUsing all these solutions, state the final answer to the problem as one number.");
  out.lead = "The final answer is";
  out.answers = {problem.answer};
  out.metric = Metric::kContains;
  out.history = debate.first_round;
  return out;
}

}  // namespace

Result<std::vector<CaseSource>> make_debate(Engine& engine, SuiteParams& params) {
  const std::string path = params.needed_text("path"), as = params.text("as", "debate");
  const int n = params.number("n", 5, 1, 100000), tokens = params.number("tokens", 120, 1, 4096);
  KVILT_TRY(params.finish());
  KVILT_ASSIGN(const auto problems, read_problems(path, n));
  std::vector<CaseSource> out;
  for (size_t p = 0; p < problems.size(); ++p) {
    auto debate = std::make_shared<Debate>();  // one first round for its three cases
    for (int agent = 0; agent < kAgents; ++agent) {
      const std::string id = fmt::format("{}.{}", p + 1, agent + 1);
      out.push_back({as, id,
                     [=, &engine, problem = problems[p]]() -> Result<EvalCase> {
                       KVILT_TRY(first_round(engine, problem, tokens, *debate));
                       EvalCase made = second_round(problem, *debate, agent);
                       made.suite = as;
                       made.id = id;
                       return made;
                     },
                     fmt::format("{} tokens\n{}\n{}", tokens, problems[p].question, problems[p].answer)});
    }
  }
  return out;
}

// Four people write in turn, each with a system prompt of their own; the question is the next one's message. There is
// no right answer: the case has distances only.
Result<std::vector<CaseSource>> make_group_chat(Engine& engine, SuiteParams& params) {
  const int n = params.number("n", 5, 1, 100000), messages = params.number("messages", 6, 1, 200);
  const int tokens = params.number("tokens", 64, 1, 4096), seed = params.number("seed", 1, 0, 1 << 30);
  const std::string as = params.text("as", "group-chat");
  KVILT_TRY(params.finish());
  const auto make = [=, &engine](int, std::mt19937_64& rng) -> Result<EvalCase> {
    static const char* const kNames[] = {"Alma", "Boris", "Chiara", "Dmitri"};
    static const char* const kRoles[] = {"a product manager", "a programmer", "a designer", "a customer"};
    static const char* const kThings[] = {"a bakery",         "a library", "a bicycle workshop",
                                          "a small hospital", "a theatre", "a farm"};
    static const char* const kTasks[] = {"a booking page", "an app for volunteers", "a new price list",
                                         "a way to count visitors", "a summer festival"};
    const std::string topic = fmt::format("{} for {}", kTasks[rng() % 5], kThings[rng() % 6]);
    EvalCase out;
    for (int m = 0; m <= messages; ++m) {
      const int speaker = m % 4;
      std::vector<CasePart> before{{fmt::format("The group plans {}.\n", topic)}};
      for (size_t i = 0; i < out.history.size(); ++i) {
        before.push_back({fmt::format("\n{}:", kNames[i % 4])});
        before.push_back(written(out.history[i]));
      }
      EvalCase next = asked_after(fmt::format("You are {}, {}, in a group chat. You write one short message.",
                                              kNames[speaker], kRoles[speaker]),
                                  before, fmt::format("\n\nWrite {}'s next message.", kNames[speaker]));
      next.suite = as;
      next.lead = fmt::format("{}:", kNames[speaker]);
      if (m == messages) {
        next.history = std::move(out.history);
        return next;
      }
      KVILT_ASSIGN(PastRequest past, write_answer(engine, next, tokens));
      out.history.push_back(std::move(past));
    }
    return out;
  };
  std::vector<CaseSource> out = numbered(as, n, seed, make);
  for (CaseSource& source : out) source.made_of = fmt::format("{} messages of {} tokens", messages, tokens);
  return out;
}

}  // namespace kvilt
