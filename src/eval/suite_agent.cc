// eval/suite_agent.cc: prompts of agents: tool schemas that come again in another order, one more or one fewer; and a
// chat whose earlier turns are retrieved, so that their order and the text before them have changed since they were
// said.
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "eval/json_lines.h"
#include "eval/suite.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

struct Tool {
  std::string name, schema;
};

struct ToolQuestion {
  std::string question;
  std::vector<Tool> tools;
  std::string right;  // name of the tool to call
};

// BFCL: lines {"id", "question": [[{"role", "content"}]], "function": [{"name", ...}]}; the answers' file has lines
// {"id", "ground_truth": [{NAME: ...}]}.
Result<std::vector<ToolQuestion>> read_bfcl(const std::string& path, const std::string& answers) {
  const auto read = [](const std::string& file, const std::function<void(const Json&)>& take) {
    return each_question_of_file(file, [&](const Json& line, int) -> Result<bool> {
      try {
        take(line);
      } catch (const std::exception& problem) {
        return error(Code::kInvalidArgument, "is not a line of BFCL: {}", problem.what());
      }
      return true;
    });
  };
  std::map<std::string, std::string> right;
  KVILT_TRY(read(answers, [&](const Json& line) {
    right[line.at("id").get<std::string>()] = line.at("ground_truth").at(0).begin().key();
  }));
  std::vector<ToolQuestion> out;
  KVILT_TRY(read(path, [&](const Json& line) {
    ToolQuestion next;
    next.question = line.at("question").at(0).back().at("content").get<std::string>();
    for (const Json& function : line.at("function"))
      next.tools.push_back({function.at("name").get<std::string>(), function.dump() + "\n"});
    next.right = right.at(line.at("id").get<std::string>());
    out.push_back(std::move(next));
  }));
  return out;
}

// Made-up tools: verb_thing with parameters, and a question that names what only one of them does.
std::vector<ToolQuestion> made_up(int seed) {
  static const char* const kVerbs[] = {"get", "find", "create", "delete", "update", "compare", "convert", "book"};
  static const char* const kThings[] = {"weather", "flight", "invoice",  "calendar_event", "exchange_rate", "recipe",
                                        "parcel",  "hotel",  "playlist", "contact",        "train_ticket",  "reminder"};
  static const char* const kFields[] = {"city", "date", "amount", "currency", "language", "limit", "person", "color"};
  auto rng = case_rng("tools", seed, 0);
  std::vector<ToolQuestion> out;
  for (const char* verb : kVerbs) {
    for (const char* thing : kThings) {
      const std::string name = fmt::format("{}_{}", verb, thing);
      std::string spoken = fmt::format("{} a {}", verb, thing);
      for (char& c : spoken) c = c == '_' ? ' ' : c;
      Json properties = Json::object();
      const size_t fields = 2 + rng() % 3, first = rng() % 8;
      for (size_t f = 0; f < fields; ++f) {
        const char* field = kFields[(first + f) % 8];
        properties[field] = {{"type", f % 2 ? "integer" : "string"},
                             {"description", fmt::format("The {} of the {}.", field, thing)}};
      }
      const Json schema{
          {"name", name},
          {"description", fmt::format("Use this tool to {} for the user.", spoken)},
          {"parameters", {{"type", "object"}, {"properties", properties}, {"required", {kFields[first]}}}}};
      out.push_back({fmt::format("Please {} for me.", spoken), {{name, schema.dump() + "\n"}}, name});
    }
  }
  return out;
}

// The question's own tools and those of other questions, `count` in all, shuffled.
std::vector<Tool> tools_for(const ToolQuestion& asked, const std::vector<ToolQuestion>& all, int count,
                            std::mt19937_64& rng) {
  std::vector<Tool> tools = asked.tools;
  std::set<std::string> names;
  for (const Tool& tool : tools) names.insert(tool.name);
  for (int tries = 0; static_cast<int>(tools.size()) < count && tries < 50 * count; ++tries) {
    const ToolQuestion& other = all[rng() % all.size()];
    const Tool& tool = other.tools[rng() % other.tools.size()];
    if (names.insert(tool.name).second) tools.push_back(tool);
  }
  shuffle(tools, rng);
  return tools;
}

}  // namespace

// change=order: the known tools in another order (--warm context warms them in yet another). add: one of them is new.
// remove: one that was among the others when they were warmed is gone; only --warm context can tell this from order.
Result<std::vector<CaseSource>> make_agent(Engine& engine, SuiteParams& params) {
  const std::string path = params.text("path", ""), answers = params.text("answers", "");
  const int n = params.number("n", 20, 1, 100000), tools = params.number("tools", 10, 2, 1000);
  const int seed = params.number("seed", 1, 0, 1 << 30);
  const std::string change = params.text("change", "order"), as = params.text("as", "agent-" + change);
  KVILT_TRY(params.finish());
  if (change != "order" && change != "add" && change != "remove")
    return error(Code::kInvalidArgument, "suite 'agent': change is '{}', not order, add or remove", change);
  if (path.empty() != answers.empty())
    return error(Code::kInvalidArgument, "suite 'agent': path and answers go together");
  auto all = std::make_shared<std::vector<ToolQuestion>>();
  if (path.empty()) {
    *all = made_up(seed);
  } else {
    KVILT_ASSIGN(*all, read_bfcl(path, answers));
  }
  return numbered(as, n, seed, [=](int, std::mt19937_64& rng) -> Result<EvalCase> {
    const ToolQuestion& asked = (*all)[rng() % all->size()];
    const auto chosen = tools_for(asked, *all, tools, rng);
    EvalCase out;
    out.lead = "The tool is \"";
    CaseTurn system{"system", {{"You are an agent. You choose one of these tools:\n"}}};
    for (const Tool& tool : chosen) system.parts.push_back({tool.schema, true});
    const size_t other = 1 + rng() % chosen.size();
    if (change == "add") system.parts[other].warmed = false;
    if (change == "remove" && chosen[other - 1].name != asked.right) {
      out.warm_only.push_back(system.parts[other]);
      system.parts.erase(system.parts.begin() + static_cast<long>(other));
    }
    out.turns = {std::move(system), {"user", {{asked.question + "\nReply with the name of the one tool to call."}}}};
    out.answers = {asked.right};
    out.metric = Metric::kQuoted;
    return out;
  });
}

// Turns of a chat, each one piece, in the order in which a retriever finds them. The question needs `facts` of them.
Result<std::vector<CaseSource>> make_rounds(Engine& engine, SuiteParams& params) {
  const int n = params.number("n", 20, 1, 100000), turns = params.number("turns", 12, 2, 1000);
  const int facts = params.number("facts", 1, 1, 8), seed = params.number("seed", 1, 0, 1 << 30);
  const std::string as = params.text("as", "rounds");
  KVILT_TRY(params.finish());
  if (facts > turns) return error(Code::kInvalidArgument, "suite 'rounds': facts must not be more than turns");
  return numbered(as, n, seed, [=, &engine](int, std::mt19937_64& rng) -> Result<EvalCase> {
    static const char* const kThings[] = {"bicycle", "violin", "lamp", "camera", "table", "clock", "carpet", "boat",
                                          "piano",   "coat",   "ring", "globe",  "drum",  "tent",  "stove",  "mirror"};
    std::vector<int> order(16);
    for (int i = 0; i < 16; ++i) order[i] = i;
    shuffle(order, rng);
    std::vector<std::string> pieces, asked, answers;
    for (int t = 0; t < turns; ++t) {
      KVILT_ASSIGN(const auto small_talk, filler_sentences(engine, 40, rng));
      std::string said;
      for (const std::string& sentence : small_talk) said += sentence + " ";
      if (t < facts) {
        asked.push_back(kThings[order[t]]);
        answers.push_back(std::to_string(100 + rng() % 900));
        said += fmt::format("By the way, I paid {} coins for my {}.", answers.back(), asked.back());
      } else {
        said += fmt::format("By the way, I gave my {} to a friend.", kThings[order[8 + t % 8]]);
      }
      pieces.push_back(
          fmt::format("[turn {}] User: {}\nAssistant: Thank you, I will remember it.\n", 1 + rng() % 500, said));
    }
    shuffle(pieces, rng);
    std::string question = "I paid for these: ";
    for (size_t i = 0; i < asked.size(); ++i) question += (i ? ", " : "") + asked[i];
    EvalCase out =
        rag_case("You are an assistant with a memory. Earlier turns of this chat were retrieved for you.", pieces,
                 question + ". How many coins did I pay for each? Reply with the numbers, in this order.");
    out.answers = answers;
    out.metric = Metric::kRecall;
    return out;
  });
}

}  // namespace kvilt
