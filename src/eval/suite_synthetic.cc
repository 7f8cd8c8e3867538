// eval/suite_synthetic.cc: needles, variables and word counts after RULER (Hsieh et al. 2024, arXiv:2404.06654), spread
// over pieces that are known one by one: a needle is in one piece, a variable's chain crosses them.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "eval/suite.h"

namespace kvilt {
namespace {

struct Common {
  int n, length, pieces, seed;
};

Common common_params(SuiteParams& params) {
  return {params.number("n", 20, 1, 100000), params.number("length", 2048, 64, 1 << 20),
          params.number("segments", 8, 1, 1000), params.number("seed", 1, 0, 1 << 30)};
}

std::string join(const std::vector<std::string>& sentences) {
  std::string out;
  for (const std::string& sentence : sentences) out += (out.empty() ? "" : " ") + sentence;
  return out + "\n";
}

// Filler for `c.pieces` pieces that together have about `length` tokens.
Result<std::vector<std::vector<std::string>>> filler(const Engine& engine, const Common& c, std::mt19937_64& rng) {
  std::vector<std::vector<std::string>> out;
  for (int s = 0; s < c.pieces; ++s) {
    KVILT_ASSIGN(auto sentences, filler_sentences(engine, c.length / c.pieces, rng));
    out.push_back(std::move(sentences));
  }
  return out;
}

void put(std::vector<std::string>& piece, const std::string& sentence, std::mt19937_64& rng) {
  piece.insert(piece.begin() + static_cast<long>(rng() % (piece.size() + 1)), sentence);
}

std::vector<std::string> joined(const std::vector<std::vector<std::string>>& pieces) {
  std::vector<std::string> out;
  for (const auto& piece : pieces) out.push_back(join(piece));
  return out;
}

// Calls make() until it gave `count` different items.
template <class Make>
std::vector<std::string> distinct(int count, Make make) {
  std::vector<std::string> out;
  std::set<std::string> seen;
  while (static_cast<int>(out.size()) < count) {
    std::string item = make();
    if (seen.insert(item).second) out.push_back(std::move(item));
  }
  return out;
}

std::string key_name(std::mt19937_64& rng) {
  static const char* const kFirst[] = {"amber",  "brave", "calm",   "dusty", "eager",  "faint",  "golden",
                                       "hollow", "icy",   "jolly",  "keen",  "lucky",  "mellow", "narrow",
                                       "olive",  "proud", "quaint", "rusty", "silent", "tall"};
  static const char* const kSecond[] = {"anchor", "basket", "candle", "dolphin", "engine", "falcon", "guitar",
                                        "hammer", "island", "jacket", "kettle",  "ladder", "mirror", "needle",
                                        "orchid", "pillow", "rocket", "saddle",  "temple", "window"};
  return fmt::format("{}-{}", kFirst[rng() % 20], kSecond[rng() % 20]);
}

std::string list_text(const std::vector<std::string>& items) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) out += (i == 0 ? "" : i + 1 == items.size() ? " and " : ", ") + items[i];
  return out;
}

std::string variable(std::mt19937_64& rng) {
  std::string out;
  for (int i = 0; i < 3; ++i) out += static_cast<char>('A' + rng() % 26);
  return out;
}

}  // namespace

Result<std::vector<CaseSource>> make_niah(Engine& engine, SuiteParams& params) {
  const Common c = common_params(params);
  const int keys = params.number("keys", 1, 1, 100), values = params.number("values", 1, 1, 16);
  const int queries = params.number("queries", 1, 1, 16);
  const std::string as = params.text("as", "niah");
  KVILT_TRY(params.finish());
  if (queries > keys) return error(Code::kInvalidArgument, "suite 'niah': queries must not be more than keys");
  return numbered(as, c.n, c.seed, [=, &engine](int, std::mt19937_64& rng) -> Result<EvalCase> {
    KVILT_ASSIGN(auto pieces, filler(engine, c, rng));
    const auto names = distinct(keys, [&] { return key_name(rng); });
    const auto numbers = distinct(keys * values, [&] { return std::to_string(10000 + rng() % 90000); });
    std::vector<std::string> answers;
    for (int k = 0; k < keys; ++k) {
      for (int v = 0; v < values; ++v) {
        const std::string& number = numbers[k * values + v];
        put(pieces[rng() % pieces.size()], fmt::format("The special number for {} is {}.", names[k], number), rng);
        if (k < queries) answers.push_back(number);
      }
    }
    const std::vector<std::string> asked(names.begin(), names.begin() + queries);
    EvalCase out =
        rag_case("Special numbers are hidden in the text. Remember them.", joined(pieces),
                 answers.size() == 1
                     ? fmt::format("What is the special number for {} in the text? Reply with the number.", asked[0])
                     : fmt::format("What are all the special numbers for {} in the text? Reply with the numbers.",
                                   list_text(asked)));
    out.answers = answers;
    out.metric = Metric::kRecall;
    return out;
  });
}

Result<std::vector<CaseSource>> make_tracking(Engine& engine, SuiteParams& params) {
  const Common c = common_params(params);
  const int chains = params.number("chains", 2, 1, 20), hops = params.number("hops", 1, 1, 20);
  const std::string form = params.text("form", "value"), as = params.text("as", "vt-" + form);
  KVILT_TRY(params.finish());
  if (form != "value" && form != "listing")
    return error(Code::kInvalidArgument, "suite 'vt': form is '{}', not value or listing", form);
  if (c.pieces <= hops) return error(Code::kInvalidArgument, "suite 'vt': needs more segments than hops");
  return numbered(as, c.n, c.seed, [=, &engine](int, std::mt19937_64& rng) -> Result<EvalCase> {
    KVILT_ASSIGN(auto pieces, filler(engine, c, rng));
    const auto names = distinct(chains * (hops + 1), [&] { return variable(rng); });
    const auto numbers = distinct(chains, [&] { return std::to_string(1000 + rng() % 9000); });
    for (int chain = 0; chain < chains; ++chain) {
      std::vector<int> where;  // increasing: a variable is assigned before it is read
      while (static_cast<int>(where.size()) <= hops) {
        const int at = static_cast<int>(rng() % pieces.size());
        if (std::ranges::find(where, at) == where.end()) where.push_back(at);
      }
      std::ranges::sort(where);
      for (int hop = 0; hop <= hops; ++hop) {
        const int i = chain * (hops + 1) + hop;
        put(pieces[where[hop]],
            fmt::format("VAR {} = {}.", names[i], hop == 0 ? numbers[chain] : "VAR " + names[i - 1]), rng);
      }
    }
    EvalCase out = rag_case(
        "Variables are assigned in the text, some from other variables. Keep track of their values.", joined(pieces),
        form == "value" ? fmt::format("What is the value of VAR {}? Reply with the number.", names[hops])
                        : fmt::format("Which variables have the value {}? Reply with all their names.", numbers[0]));
    if (form == "value") {
      out.answers = {numbers[0]};
    } else {
      out.answers.assign(names.begin(), names.begin() + hops + 1);
    }
    out.metric = form == "value" ? Metric::kContains : Metric::kRecall;
    return out;
  });
}

Result<std::vector<CaseSource>> make_words(Engine& engine, SuiteParams& params) {
  const Common c = common_params(params);
  const int top = params.number("top", 3, 1, 20);
  const std::string form = params.text("form", "common"), as = params.text("as", "words-" + form);
  KVILT_TRY(params.finish());
  if (form != "common" && form != "frequent")
    return error(Code::kInvalidArgument, "suite 'words': form is '{}', not common or frequent", form);
  return numbered(as, c.n, c.seed, [=, &engine](int, std::mt19937_64& rng) -> Result<EvalCase> {
    // common: `top` words are eight times as frequent as each of the others. frequent: the r-th word is 1 / r^2 as
    // frequent as the first.
    const auto words = distinct(std::max(4 * top, 40), [&] { return key_name(rng); });
    std::vector<std::string> bag;
    for (int round = 1, tokens = 0; tokens < c.length; ++round) {
      for (size_t w = 0; w < words.size(); ++w) {
        const bool often = static_cast<int>(w) < top;
        const auto every = static_cast<int>((w + 1) * (w + 1));
        const int times = form == "common" ? (often ? 8 : 1) : round % every == 0;
        for (int t = 0; t < times && tokens < c.length; ++t) {
          bag.push_back(words[w]);
          KVILT_ASSIGN(const int size, token_count(engine, " " + words[w]));
          tokens += std::max(1, size);
        }
      }
    }
    shuffle(bag, rng);
    std::vector<std::string> pieces(static_cast<size_t>(c.pieces));
    for (size_t i = 0; i < bag.size(); ++i) {
      std::string& piece = pieces[i * pieces.size() / bag.size()];
      piece += (piece.empty() ? "" : " ") + bag[i];
    }
    for (std::string& piece : pieces) piece += "\n";
    EvalCase out =
        rag_case("Count how often each word stands in the list.", pieces,
                 fmt::format("Which {} words are the most frequent in the list? Reply with the words.", top));
    out.answers.assign(words.begin(), words.begin() + top);
    out.metric = Metric::kRecall;
    return out;
  });
}

}  // namespace kvilt
