#include "eval/case_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "eval/json_lines.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxCasesBytes = size_t{1} << 30;

Error wrong(const std::string& field, const char* what) {
  return error(Code::kInvalidArgument, "'{}' {}", field, what);
}

// A string field; `fallback` where it is absent.
Result<std::string> text_field(const Json& from, const std::string& path, const char* key,
                               const std::string& fallback) {
  if (!from.contains(key) || from[key].is_null()) return fallback;
  if (!from[key].is_string()) return wrong(path + key, "must be a string");
  return from[key].get<std::string>();
}

Result<std::string> needed_text(const Json& from, const std::string& path, const char* key) {
  if (!from.contains(key)) return wrong(path + key, "is missing");
  return text_field(from, path, key, "");
}

Status read_answers(const Json& from, const std::string& path, EvalCase& out) {
  if (!from.contains("answers") || from["answers"].is_null()) return {};
  if (!from["answers"].is_array()) return wrong(path + "answers", "must be an array of strings");
  for (const Json& answer : from["answers"]) {
    if (!answer.is_string()) return wrong(path + "answers", "must be an array of strings");
    out.answers.push_back(answer.get<std::string>());
  }
  return {};
}

// What RAG cases and dialogues share: id, suite, prompt, lead, metric.
Result<EvalCase> read_common(const Json& line, const std::string& suite, int number, const CaseFileOptions& options) {
  EvalCase out;
  KVILT_ASSIGN(out.id, text_field(line, "", "id", fmt::format("{}", number)));
  KVILT_ASSIGN(out.suite, text_field(line, "", "suite", suite));
  KVILT_ASSIGN(const std::string form, text_field(line, "", "prompt", options.chat ? "chat" : "plain"));
  if (form != "chat" && form != "plain") return wrong("prompt", "must be \"chat\" or \"plain\"");
  out.chat = form == "chat";
  KVILT_ASSIGN(out.lead, text_field(line, "", "lead", out.chat ? options.lead : ""));
  KVILT_ASSIGN(const std::string metric, text_field(line, "", "metric", "f1"));
  const auto known = parse_metric(metric);
  if (!known.ok()) return wrong("metric", "must be f1, em, recall or contains");
  out.metric = *known;
  return out;
}

// "Rhine\nThe Rhine rises ...\n"; in a plain prompt parts are joined by one space.
std::string piece_text(const std::string& title, const std::string& text, bool chat) {
  if (!chat) return " " + (title.empty() ? text : title + " " + text);
  return (title.empty() ? text : title + "\n" + text) + "\n";
}

Result<EvalCase> rag_case(const Json& line, EvalCase out) {
  KVILT_TRY(read_answers(line, "", out));
  KVILT_ASSIGN(const std::string system, text_field(line, "", "system", ""));
  KVILT_ASSIGN(const std::string question, needed_text(line, "", "question"));
  if (!line["segments"].is_array()) return wrong("segments", "must be an array");
  CaseTurn user{"user", {}};
  for (size_t i = 0; i < line["segments"].size(); ++i) {
    const Json& segment = line["segments"][i];
    const std::string path = fmt::format("segments[{}]", i);
    if (!segment.is_object()) return wrong(path, "must be an object with 'text'");
    KVILT_ASSIGN(const std::string title, text_field(segment, path + ".", "title", ""));
    KVILT_ASSIGN(const std::string text, needed_text(segment, path + ".", "text"));
    if (text.empty()) return wrong(path + ".text", "must not be empty");
    user.parts.push_back({piece_text(title, text, out.chat), true});
    if (segment.contains("warmed")) {
      if (!segment["warmed"].is_boolean()) return wrong(path + ".warmed", "must be true or false");
      user.parts.back().warmed = segment["warmed"].get<bool>();
    }
  }
  user.parts.push_back({(out.chat ? "" : " ") + question});
  if (!system.empty()) out.turns.push_back({"system", {{system}}});
  out.turns.push_back(std::move(user));
  return out;
}

// The parts of a dialogue's turn: its text is known, its question is not.
Result<std::vector<CasePart>> turn_parts(const Json& turn, const std::string& path) {
  KVILT_ASSIGN(const std::string text, text_field(turn, path + ".", "text", ""));
  KVILT_ASSIGN(const std::string question, needed_text(turn, path + ".", "question"));
  KVILT_ASSIGN(const std::string at, text_field(turn, path + ".", "query_at", "end"));
  if (at != "begin" && at != "middle" && at != "end") return wrong(path + ".query_at", "must be begin, middle or end");
  std::vector<CasePart> parts;
  if (text.empty()) {
    parts.push_back({question});
  } else if (at == "begin") {
    parts = {{question + "\n"}, {text + "\n", true}};
  } else if (at == "end") {
    parts = {{text + "\n", true}, {question}};
  } else {
    const size_t cut = middle_of(text);
    parts = {{text.substr(0, cut), true}, {"\n" + question + "\n"}};
    if (cut < text.size()) parts.push_back({text.substr(cut), true});
  }
  return parts;
}

// One case per turn: the turns before it are answered with the first of their answers.
Result<std::vector<EvalCase>> dialogue_cases(const Json& line, const EvalCase& common) {
  if (!line["turns"].is_array() || line["turns"].empty())
    return wrong("turns", "must be an array with a turn at least");
  KVILT_ASSIGN(const std::string system, text_field(line, "", "system", ""));
  std::vector<CaseTurn> history;
  if (!system.empty()) history.push_back({"system", {{system}}});
  std::vector<EvalCase> out;
  for (size_t i = 0; i < line["turns"].size(); ++i) {
    const Json& turn = line["turns"][i];
    const std::string path = fmt::format("turns[{}]", i);
    if (!turn.is_object()) return wrong(path, "must be an object");
    EvalCase next = common;
    next.id = fmt::format("{}.{}", common.id, i + 1);
    KVILT_TRY(read_answers(turn, path + ".", next));
    KVILT_ASSIGN(auto parts, turn_parts(turn, path));
    history.push_back({"user", std::move(parts)});
    next.turns = history;
    history.push_back({"assistant", {{next.answers.empty() ? "" : next.answers[0]}}});
    out.push_back(std::move(next));
  }
  return out;
}

Result<std::vector<EvalCase>> parse_line(const Json& line, const std::string& suite, int number,
                                         const CaseFileOptions& options) {
  if (!line.is_object()) return error(Code::kInvalidArgument, "must be an object");
  KVILT_ASSIGN(EvalCase common, read_common(line, suite, number, options));
  if (line.contains("turns")) return dialogue_cases(line, common);
  if (!line.contains("segments"))
    return error(Code::kInvalidArgument, "needs 'segments' (a RAG case) or 'turns' (a dialogue)");
  KVILT_ASSIGN(EvalCase made, rag_case(line, std::move(common)));
  return std::vector<EvalCase>{std::move(made)};
}

}  // namespace

size_t middle_of(const std::string& text) {
  const size_t space = text.find_first_of(" \n", text.size() / 2);
  return space == std::string::npos ? text.size() : space + 1;
}

Result<std::vector<EvalCase>> parse_cases(const std::string& text, const std::string& name,
                                          const CaseFileOptions& options) {
  std::string suite = name.substr(name.find_last_of('/') + 1);
  suite = suite.substr(0, suite.find_last_of('.'));
  std::vector<EvalCase> out;
  int used = 0;
  KVILT_TRY(each_json_line(text, name, [&](const Json& line, int number) -> Result<bool> {
    KVILT_ASSIGN(auto made, parse_line(line, suite, number, options));
    for (EvalCase& one : made) out.push_back(std::move(one));
    return options.limit == 0 || ++used < options.limit;
  }));
  if (out.empty()) return error(Code::kInvalidArgument, "{}: holds no case", name);
  return out;
}

Result<std::vector<EvalCase>> read_case_file(const std::string& path, const CaseFileOptions& options) {
  KVILT_ASSIGN(const std::string text, read_file(path, kMaxCasesBytes));
  return parse_cases(text, path, options);
}

}  // namespace kvilt
