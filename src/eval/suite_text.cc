// eval/suite_text.cc: suites over texts from files: multi-hop questions, and a novel cut in mid-sentence.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "eval/json_lines.h"
#include "eval/suite.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxTextBytes = size_t{256} << 20;

struct Passage {
  std::string text;
  bool supporting = false;
  int tokens = 0;
};

struct Question {
  std::string id, question;
  std::vector<std::string> answers;
  std::vector<Passage> passages;
};

Result<Question> read_question(const Json& line) {
  Question out;
  try {
    line.at("id").get_to(out.id);
    line.at("question").get_to(out.question);
    line.at("answers").get_to(out.answers);
    for (const Json& chunk : line.at("chunks")) {
      out.passages.push_back({chunk.at("title").get<std::string>() + "\n" + chunk.at("text").get<std::string>() + "\n",
                              chunk.value("is_supporting", false), 0});
    }
  } catch (const nlohmann::json::exception& problem) {
    return error(Code::kInvalidArgument, "needs id, question, answers, chunks of title and text: {}", problem.what());
  }
  return out;
}

// Leaves out passages that do not help, from the end, until the rest has at most `length` tokens.
Status shorten(const Engine& engine, int length, std::vector<Passage>& passages) {
  int total = 0;
  for (Passage& passage : passages) {
    KVILT_ASSIGN(passage.tokens, token_count(engine, passage.text));
    total += passage.tokens;
  }
  for (size_t i = passages.size(); i-- > 0 && total > length;) {
    if (passages[i].supporting) continue;
    total -= passages[i].tokens;
    passages.erase(passages.begin() + static_cast<long>(i));
  }
  return {};
}

// Neighbours become one piece until it has at least `least` tokens; what is left over at the end joins the last piece.
std::vector<std::string> join_passages(const std::vector<Passage>& passages, int least) {
  std::vector<std::string> out;
  int tokens = least;
  for (const Passage& passage : passages) {
    if (tokens >= least) {
      out.emplace_back();
      tokens = 0;
    }
    out.back() += passage.text;
    tokens += passage.tokens;
  }
  if (out.size() > 1 && tokens < least) {
    const std::string rest = std::move(out.back());
    out.pop_back();
    out.back() += rest;
  }
  return out;
}

}  // namespace

Result<std::vector<CaseSource>> make_multihop(Engine& engine, SuiteParams& params) {
  const std::string path = params.needed_text("path");
  const int n = params.number("n", 20, 1, 1000000), skip = params.number("skip", 0, 0, 1000000);
  const int length = params.number("length", 1200, 1, 1 << 20), piece = params.number("piece", 1, 1, 1 << 20);
  std::string name = path.substr(path.find_last_of('/') + 1);
  const std::string as = params.text("as", name.substr(0, name.find_last_of('.')));
  KVILT_TRY(params.finish());
  KVILT_ASSIGN(const std::string lines, read_file(path, kMaxTextBytes));
  std::vector<CaseSource> out;
  KVILT_TRY(each_json_line(lines, path, [&](const Json& line, int number) -> Result<bool> {
    if (number <= skip) return true;
    KVILT_ASSIGN(const Question read, read_question(line));
    out.push_back({as, read.id, [=, &engine]() -> Result<EvalCase> {
                     std::vector<Passage> passages = read.passages;
                     KVILT_TRY(shorten(engine, length, passages));
                     EvalCase made =
                         rag_case("Answer the question from the passages. Reply with the short answer only.",
                                  join_passages(passages, piece), "Question: " + read.question);
                     made.suite = as;
                     made.id = read.id;
                     made.answers = read.answers;
                     made.metric = Metric::kF1;
                     return made;
                   }});
    return static_cast<int>(out.size()) < n;
  }));
  if (out.empty()) return error(Code::kInvalidArgument, "{}: holds no question after line {}", path, skip);
  return out;
}

// A text in pieces of `piece` tokens, cut wherever that is, and the true text after them: distances are taken along its
// next `truth` tokens. begun > 0: that many tokens of it already belong to the answer, and are new to the cache.
Result<std::vector<CaseSource>> make_story(Engine& engine, SuiteParams& params) {
  const std::string path = params.needed_text("path");
  const int n = params.number("n", 10, 1, 100000), length = params.number("length", 1100, 8, 1 << 20);
  const int piece = params.number("piece", 100, 1, 1 << 20), truth = params.number("truth", 24, 1, 256);
  const int begun = params.number("begun", 0, 0, 4096), seed = params.number("seed", 1, 0, 1 << 30);
  const std::string as = params.text("as", "story");
  KVILT_TRY(params.finish());
  KVILT_ASSIGN(const std::string novel, read_file(path, kMaxTextBytes));
  const auto wanted = static_cast<size_t>(length + begun + truth);
  const size_t bytes = wanted * 8;  // no tokenizer needs more on prose
  if (novel.size() < 2 * bytes)
    return error(Code::kInvalidArgument, "{}: needs at least {} bytes of text for {} tokens", path, 2 * bytes, length);
  return numbered(as, n, seed, [=, &engine](int, std::mt19937_64& rng) -> Result<EvalCase> {
    size_t at = rng() % (novel.size() - bytes);
    const size_t space = novel.find_first_of(" \n", at);
    if (space != std::string::npos && space + bytes < novel.size()) at = space;
    KVILT_ASSIGN(auto ids, engine.tokenize(std::string_view(novel).substr(at, bytes), false, false));
    if (ids.size() < wanted)
      return error(Code::kInvalidArgument, "{}: {} bytes gave {} tokens of {}", path, bytes, ids.size(), wanted);
    EvalCase out = rag_case("You continue stories exactly in the style of the author.", {},
                            "\nContinue the story from where it stops.");
    out.lead = "";
    std::vector<CasePart>& parts = out.turns.back().parts;
    parts.insert(parts.begin(), {"Here is the beginning of a story.\n"});
    for (int i = 0; i < length; i += piece) {
      CasePart next{"", true};
      next.ids.assign(ids.begin() + i, ids.begin() + std::min(i + piece, length));
      parts.insert(parts.end() - 1, std::move(next));
    }
    out.begun.assign(ids.begin() + length, ids.begin() + length + begun);
    out.truth.assign(ids.begin() + length + begun, ids.begin() + static_cast<long>(wanted));
    return out;
  });
}

}  // namespace kvilt
