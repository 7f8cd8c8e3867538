// eval/suite_key_values.cc: the value of one key among many of random letters.
// Source: Liu et al., "Lost in the Middle", arXiv:2307.03172, whose files these are: JSON lines with ordered_kv_records,
//         key and value. Nothing but the key says which pair is meant.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "eval/json_lines.h"
#include "eval/suite.h"

namespace kvilt {
namespace {

constexpr size_t kMaxPairBytes = size_t{1} << 30;

struct PairQuestion {
  std::string key, value;
  std::vector<std::pair<std::string, std::string>> pairs;
};

Result<PairQuestion> read_pairs(const nlohmann::ordered_json& line) {
  PairQuestion out;
  try {
    line.at("key").get_to(out.key);
    line.at("value").get_to(out.value);
    line.at("ordered_kv_records").get_to(out.pairs);
  } catch (const nlohmann::json::exception& problem) {
    return error(Code::kInvalidArgument, "needs key, value, ordered_kv_records of pairs: {}", problem.what());
  }
  if (std::ranges::find(out.pairs, std::pair(out.key, out.value)) == out.pairs.end())
    return error(Code::kInvalidArgument, "key '{}' with its value is not among the ordered_kv_records", out.key);
  return out;
}

// Leaves out pairs from the end, but not the one that is asked for.
void keep_pairs(size_t most, PairQuestion& of) {
  for (size_t i = of.pairs.size(); i-- > 0 && of.pairs.size() > most;) {
    if (of.pairs[i].first != of.key) of.pairs.erase(of.pairs.begin() + static_cast<ptrdiff_t>(i));
  }
}

// The pairs as lines of a JSON object, so many a piece.
std::vector<std::string> pieces_of(const PairQuestion& from, size_t segments) {
  const size_t each = std::max<size_t>(1, (from.pairs.size() + segments - 1) / segments);
  std::vector<std::string> out;
  for (size_t i = 0; i < from.pairs.size(); ++i) {
    if (i % each == 0) out.emplace_back();
    out.back() += fmt::format("\"{}\": \"{}\"\n", from.pairs[i].first, from.pairs[i].second);
  }
  return out;
}

}  // namespace

Result<std::vector<CaseSource>> make_key_values(Engine&, SuiteParams& params) {
  const std::string path = params.needed_text("path"), as = params.text("as", "key-values");
  const int n = params.number("n", 20, 1, 1000000), skip = params.number("skip", 0, 0, 1000000);
  const int keys = params.number("keys", 40, 2, 1000000), segments = params.number("segments", 4, 1, 10000);
  KVILT_TRY(params.finish());
  KVILT_ASSIGN(const std::string lines, read_file(path, kMaxPairBytes));
  std::vector<CaseSource> out;
  KVILT_TRY(each_json_line(lines, path, [&](const nlohmann::ordered_json& line, int number) -> Result<bool> {
    if (number <= skip) return true;
    KVILT_ASSIGN(PairQuestion read, read_pairs(line));
    keep_pairs(static_cast<size_t>(keys), read);
    EvalCase made =
        rag_case("Find the value of a key. Reply with the value only.", pieces_of(read, static_cast<size_t>(segments)),
                 fmt::format("Question: Which value has the key \"{}\"?", read.key));
    made.suite = as;
    made.id = std::to_string(number);
    made.answers = {read.value};
    made.metric = Metric::kContains;
    out.push_back({as, made.id, [made = std::move(made)]() -> Result<EvalCase> { return made; }});
    return static_cast<int>(out.size()) < n;
  }));
  if (out.empty()) return error(Code::kInvalidArgument, "{}: holds no pairs after line {}", path, skip);
  return out;
}

}  // namespace kvilt
