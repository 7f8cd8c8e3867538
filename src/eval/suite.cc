#include "eval/suite.h"

#include <charconv>

#include "base/error.h"

namespace kvilt {

const std::vector<SuiteEntry>& suite_table() {
  static const std::vector<SuiteEntry> table = {
      {"niah", "numbers hidden in filler: n, length, segments, keys, values, queries, seed", make_niah},
      {"vt", "variables through hops between segments: n, length, segments, chains, hops, form=value|listing, seed",
       make_tracking},
      {"words", "the most common words of lists: n, length, segments, top, form=common|frequent, seed", make_words},
      {"records",
       "a number at a name among rows that look alike: n, length, segments, hops=0|1, "
       "kind=mixed|staff|invoices|logs|prices, seed",
       make_records},
      {"multihop", "questions over passages: path (JSON lines with chunks), n, length, piece, skip", make_multihop},
      {"key-values", "a value among random keys: path (Lost in the Middle's JSON lines), n, keys, segments, skip",
       make_key_values},
      {"story",
       "a novel cut in mid-sentence; distances along the true text: path, n, length, piece, begun, truth, seed",
       make_story},
      {"agent", "which tool to call: path and answers (BFCL), or made up; n, tools, change=order|add|remove, seed",
       make_agent},
      {"rounds", "a question over retrieved turns of a chat: n, turns, facts, seed", make_rounds},
      {"debate", "three agents answer, then see each other's answers: path (GSM8K), n, tokens, seed", make_debate},
      {"dialogue",
       "turns of another suite, the question before, in or after the text: of, turns, at=begin|middle|end, n, and of's "
       "own",
       make_dialogue},
      {"mt-bench", "second turns of MT-bench; distances: path (question.jsonl), answers (reference), n", make_mt_bench},
      {"edited",
       "text that was edited since it was cached: form=sentences|lines|numbered|escaped|indented|notes, share, n, "
       "length, segments, seed; path (as multihop; source files)",
       make_edited},
      {"group-chat", "four people write in turn: n, messages, tokens, seed", make_group_chat},
  };
  return table;
}

Result<SuiteParams> SuiteParams::parse(const std::string& text) {
  SuiteParams out;
  const size_t colon = text.find(':');
  out.name_ = text.substr(0, colon);
  size_t begin = colon == std::string::npos ? text.size() : colon + 1;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const size_t eq = part.find('=');
    if (eq == std::string::npos || eq == 0)
      return error(Code::kInvalidArgument, "suite '{}': '{}' is not name=value", text, part);
    out.given_[part.substr(0, eq)] = part.substr(eq + 1);
    begin = end + 1;
  }
  return out;
}

void SuiteParams::complain(const std::string& why) {
  if (wrong_.empty()) wrong_ = why;
}

int SuiteParams::number(const std::string& key, int fallback, int low, int high) {
  const auto it = given_.find(key);
  if (it == given_.end()) return fallback;
  taken_[key] = true;
  int value = 0;
  const char* end = it->second.data() + it->second.size();
  const auto [stop, bad] = std::from_chars(it->second.data(), end, value);
  if (bad == std::errc() && stop == end && value >= low && value <= high) return value;
  complain(fmt::format("{} is '{}', not a whole number from {} to {}", key, it->second, low, high));
  return fallback;
}

std::string SuiteParams::text(const std::string& key, const std::string& fallback) {
  const auto it = given_.find(key);
  if (it == given_.end()) return fallback;
  taken_[key] = true;
  return it->second;
}

std::string SuiteParams::needed_text(const std::string& key) {
  const std::string value = text(key, "");
  if (value.empty()) complain(key + " is missing: write " + name_ + ":" + key + "=...");
  return value;
}

Result<std::string> SuiteParams::rest_for(const std::string& suite, int n) const {
  if (!wrong_.empty()) return error(Code::kInvalidArgument, "suite '{}': {}", name_, wrong_);
  std::string out = fmt::format("{}:n={}", suite, n);
  for (const auto& [key, value] : given_) {
    if (!taken_.count(key)) out += fmt::format(",{}={}", key, value);
  }
  return out;
}

Status SuiteParams::finish() const {
  if (!wrong_.empty()) return error(Code::kInvalidArgument, "suite '{}': {}", name_, wrong_);
  for (const auto& [key, value] : given_) {
    if (!taken_.count(key)) return error(Code::kInvalidArgument, "suite '{}' has no parameter '{}'", name_, key);
  }
  return {};
}

Result<std::vector<CaseSource>> make_suite(Engine& engine, const std::string& text) {
  KVILT_ASSIGN(SuiteParams params, SuiteParams::parse(text));
  std::string names;
  for (const SuiteEntry& entry : suite_table()) {
    if (params.name() == entry.name) return entry.make(engine, params);
    names += std::string(names.empty() ? "" : ", ") + entry.name;
  }
  return error(Code::kInvalidArgument, "no suite '{}'; there are {}", params.name(), names);
}

std::mt19937_64 case_rng(const std::string& suite, int seed, int index) {
  uint64_t h = 1469598103934665603ull;  // FNV-1a
  for (const char c : suite) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  h = (h ^ static_cast<uint64_t>(seed)) * 1099511628211ull;
  return std::mt19937_64((h ^ static_cast<uint64_t>(index)) * 1099511628211ull);
}

std::vector<CaseSource> numbered(const std::string& suite, int n, int seed,
                                 std::function<Result<EvalCase>(int index, std::mt19937_64& rng)> make) {
  std::vector<CaseSource> out;
  for (int i = 0; i < n; ++i) {
    const std::string id = fmt::format("{}-{}", seed, i);
    out.push_back({suite, id, [=]() -> Result<EvalCase> {
                     auto rng = case_rng(suite, seed, i);
                     KVILT_ASSIGN(EvalCase made, make(i, rng));
                     made.suite = suite;
                     made.id = id;
                     return made;
                   }});
  }
  return out;
}

Result<int> token_count(const Engine& engine, const std::string& text) {
  KVILT_ASSIGN(const auto ids, engine.tokenize(text, false, false));
  return static_cast<int>(ids.size());
}

Result<std::vector<std::string>> filler_sentences(const Engine& engine, int tokens, std::mt19937_64& rng) {
  static const char* const kWho[] = {"The gardener", "A young teacher", "My neighbour", "The old captain",
                                     "Her brother",  "The tailor",      "A traveller",  "The night guard",
                                     "Our cook",     "The clockmaker",  "A musician",   "The postman"};
  static const char* const kDid[] = {"walked slowly to",  "painted a picture of",   "told a long story about",
                                     "waited all day at", "wrote a letter about",   "came back from",
                                     "never spoke about", "looked for a friend at", "dreamed of"};
  static const char* const kWhere[] = {"the harbour", "the northern market", "the school", "the empty station",
                                       "the hill",    "the old mill",        "the river",  "a small village",
                                       "the library", "the eastern bridge"};
  static const char* const kWhen[] = {"before the rain began", "while the bells were ringing", "in the early morning",
                                      "after a long winter",   "when nobody was there",        "on a quiet evening",
                                      "as every year",         "during the great storm"};
  std::vector<std::string> out;
  for (int count = 0; count < tokens;) {
    out.push_back(fmt::format("{} {} {} {}.", kWho[rng() % 12], kDid[rng() % 9], kWhere[rng() % 10], kWhen[rng() % 8]));
    KVILT_ASSIGN(const int size, token_count(engine, " " + out.back()));
    count += std::max(1, size);
  }
  return out;
}

EvalCase rag_case(const std::string& system, const std::vector<std::string>& pieces, const std::string& question) {
  EvalCase out;
  out.lead = "Answer:";
  out.turns.push_back({"system", {{system}}});
  CaseTurn user{"user", {}};
  for (const std::string& piece : pieces) user.parts.push_back({piece, true});
  user.parts.push_back({question});
  out.turns.push_back(std::move(user));
  return out;
}

}  // namespace kvilt
