// eval/suite_edited.cc: text that was edited since it was cached. The cache holds the old text of each piece, the prompt
// the new one; a hit that is not equal to the letter has to be found by what is equal in it (docs/design/finding.md).
// sentences: passages of the multi-hop sets; in a share of the case's sentences a number, or a word, is another.
// lines:     source files; in a share of the case's lines likewise.
// numbered, escaped, indented: source files as agents read them between edits: with line numbers, as a JSON string,
//            indented by four.
// notes:     sentences of 10 to 20 tokens in another order.
// Questions: of sentences, the set's own (an answer's sentence is not edited); of the others none: distances only.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/random.h"
#include "eval/suite.h"

namespace kvilt {
namespace {

constexpr size_t kMaxSourceBytes = size_t{1} << 20;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::vector<std::string> cut_behind(const std::string& text, std::string_view mark) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t at = text.find(mark, begin);
    const size_t end = at == std::string::npos ? text.size() : at + mark.size();
    out.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return out;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += part;
  return out;
}

// The text with another number, else with another word in place of its longest one.
std::string edit(std::string text, std::mt19937_64& rng) {
  static const char* const kWords[] = {"harbour", "yellow", "seldom",  "eastern",
                                       "copper",  "former", "quietly", "larger"};
  const auto digits = std::ranges::find_if(text, is_digit);
  if (digits != text.end()) {
    for (auto at = digits; at != text.end() && is_digit(*at); ++at)
      *at = static_cast<char>('0' + (*at - '0' + 1 + static_cast<int>(rng() % 8)) % 10);
    return text;
  }
  size_t best = 0, size = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    size_t end = at;
    while (end < text.size() && is_letter(text[end])) ++end;
    if (end - at > size) best = at, size = end - at;
    at = std::max(at, end);
  }
  return text.replace(best, size, kWords[rng() % 8]);
}

// In place of the text of some known parts, one that was edited: a share of all units (what `mark` ends) of these parts
// together, at least one, spread at random. The share is of the case: at least one of each part would edit a fifth of
// the sentences of short passages, whatever the share. A unit that holds an answer stays, and so does one without words.
void edit_some(std::vector<CasePart>& parts, std::string_view mark, double share,
               const std::vector<std::string>& answers, std::mt19937_64& rng) {
  std::vector<std::vector<std::string>> units(parts.size());
  std::vector<std::pair<size_t, size_t>> free;  // part, unit
  size_t all = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].known) continue;
    units[i] = cut_behind(parts[i].text, mark);
    all += units[i].size();
    for (size_t j = 0; j < units[i].size(); ++j) {
      const std::string& unit = units[i][j];
      const bool has_answer = std::ranges::any_of(
          answers, [&](const std::string& answer) { return unit.find(answer) != std::string::npos; });
      if (!has_answer && std::ranges::count_if(unit, is_letter) > 4) free.emplace_back(i, j);
    }
  }
  shuffle(free, rng);
  const auto wanted = static_cast<size_t>(share * static_cast<double>(all) + 0.5);
  free.resize(std::min(free.size(), std::max<size_t>(1, wanted)));
  for (const auto& [part, unit] : free) units[part][unit] = edit(std::move(units[part][unit]), rng);
  for (size_t i = 0; i < parts.size(); ++i) {
    std::string text = joined(units[i]);
    if (!parts[i].known || text == parts[i].text) continue;
    parts[i].was = std::exchange(parts[i].text, std::move(text));
  }
}

std::string as_form(const std::string& text, const std::string& form) {
  std::vector<std::string> lines = cut_behind(text, "\n");
  if (form == "escaped") return nlohmann::json(text).dump() + "\n";
  for (size_t i = 0; i < lines.size(); ++i)
    lines[i] = (form == "numbered" ? fmt::format("{:6}\t", i + 1) : std::string("    ")) + lines[i];
  return joined(lines);
}

// Source files under a folder, in the order of their names; or the one file.
Result<std::vector<std::string>> read_sources(const std::string& path) {
  namespace fs = std::filesystem;
  static const char* const kKinds[] = {".c",  ".cc", ".cpp", ".h",  ".hpp",  ".py",
                                       ".js", ".ts", ".go",  ".rs", ".java", ".md"};
  std::vector<std::string> names, out;
  std::error_code wrong;
  if (fs::is_regular_file(path, wrong)) names.push_back(path);
  for (fs::recursive_directory_iterator at(path, wrong), end; !wrong && at != end; at.increment(wrong)) {
    const bool source = std::ranges::find(kKinds, at->path().extension().string()) != std::end(kKinds);
    std::error_code gone;
    if (source && at->is_regular_file(gone) && at->file_size(gone) < kMaxSourceBytes)
      names.push_back(at->path().string());
  }
  std::ranges::sort(names);
  for (const std::string& name : names) {
    KVILT_ASSIGN(std::string text, read_file(name, kMaxSourceBytes));
    const bool plain = text.find('\0') == std::string::npos;
    if (plain && std::ranges::count(text, '\n') >= 8) out.push_back(std::move(text));
  }
  if (out.empty()) return error(Code::kInvalidArgument, "suite 'edited': {} holds no source file of 8 lines", path);
  return out;
}

// Lines of a file from a random one on, of about `tokens` tokens.
Result<std::string> part_of(const Engine& engine, const std::string& source, int tokens, std::mt19937_64& rng) {
  const std::vector<std::string> lines = cut_behind(source, "\n");
  std::string out;
  int have = 0;
  for (size_t at = rng() % (lines.size() / 2); at < lines.size() && have < tokens; ++at) {
    KVILT_ASSIGN(const int more, token_count(engine, lines[at]));
    have += more;
    out += lines[at];
  }
  return out;
}

struct Edited {
  std::string form, path;
  double share = 0;
  int length = 0, segments = 0;
};

Result<CasePart> edited_part(const Engine& engine, const Edited& of, const std::vector<std::string>& sources,
                             std::mt19937_64& rng) {
  CasePart part{"", true};
  if (of.form == "notes") {
    KVILT_ASSIGN(std::vector<std::string> notes, filler_sentences(engine, of.length / of.segments, rng));
    for (std::string& note : notes) note = "- " + note + "\n";
    part.was = joined(notes);
    shuffle(notes, rng);
    part.text = joined(notes);
    return part;
  }
  KVILT_ASSIGN(part.text, part_of(engine, sources[rng() % sources.size()], of.length / of.segments, rng));
  if (of.form == "lines") return part;  // edited with the case's other files
  part.was = part.text;
  part.text = as_form(part.was, of.form);
  return part;
}

Result<double> share_of(const std::string& text) {
  double share = 0;
  const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (bad == std::errc() && end == text.data() + text.size() && share > 0 && share <= 1) return share;
  return error(Code::kInvalidArgument, "suite 'edited': share is '{}', not a number from 0 to 1", text);
}

// Cases of a multi-hop set whose passages were others when they were cached.
Result<std::vector<CaseSource>> edited_passages(Engine& engine, const std::string& inner, const std::string& as,
                                                double share, int seed) {
  KVILT_ASSIGN(const std::vector<CaseSource> sources, make_suite(engine, inner));
  std::vector<CaseSource> out;
  for (size_t i = 0; i < sources.size(); ++i) {
    const CaseSource source = sources[i];
    out.push_back({as, source.id, [=]() -> Result<EvalCase> {
                     KVILT_ASSIGN(EvalCase made, source.make());
                     auto rng = case_rng("edited", seed, static_cast<int>(i));
                     edit_some(made.turns.back().parts, ". ", share, made.answers, rng);
                     made.suite = as;
                     return made;
                   }});
  }
  return out;
}

}  // namespace

Result<std::vector<CaseSource>> make_edited(Engine& engine, SuiteParams& params) {
  const std::string form = params.text("form", "sentences");
  KVILT_ASSIGN(const double share, share_of(params.text("share", "0.05")));
  const int n = params.number("n", 20, 1, 100000), seed = params.number("seed", 1, 0, 1 << 30);
  const bool shared = form == "sentences" || form == "lines";
  const std::string as = params.text("as", shared ? fmt::format("edited-{}-{}", form, share) : "edited-" + form);
  if (form == "sentences") {
    KVILT_ASSIGN(const std::string inner, params.rest_for("multihop", n));
    return edited_passages(engine, inner, as, share, seed);
  }
  const bool of_sources = form == "lines" || form == "numbered" || form == "escaped" || form == "indented";
  if (!of_sources && form != "notes")
    return error(Code::kInvalidArgument,
                 "suite 'edited': form is '{}', not sentences, lines, numbered, escaped, indented or notes", form);
  const Edited of{form, of_sources ? params.needed_text("path") : "", share, params.number("length", 1000, 32, 1 << 20),
                  params.number("segments", 2, 1, 1000)};
  KVILT_TRY(params.finish());
  auto sources = std::make_shared<std::vector<std::string>>();
  if (of_sources) {
    KVILT_ASSIGN(*sources, read_sources(of.path));
  }
  return numbered(as, n, seed, [=, &engine](int, std::mt19937_64& rng) -> Result<EvalCase> {
    EvalCase out = rag_case(of_sources ? "You read source files." : "You read notes.", {},
                            of_sources ? "\nWhat do these files do? Answer in one sentence."
                                       : "\nWhat do these notes tell of? Answer in one sentence.");
    std::vector<CasePart>& parts = out.turns.back().parts;
    for (int i = 0; i < of.segments; ++i) {
      KVILT_ASSIGN(CasePart part, edited_part(engine, of, *sources, rng));
      parts.insert(parts.end() - 1, std::move(part));
    }
    if (of.form == "lines") edit_some(parts, "\n", of.share, {}, rng);
    return out;
  });
}

}  // namespace kvilt
