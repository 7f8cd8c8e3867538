// apps/bench/eviction_traces.cc: see eviction_traces.h.
#include "apps/bench/eviction_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>

#include "base/error.h"

namespace kvilt {
namespace {

constexpr int kMooncakeBlock = 512, kOurBlock = 256;
constexpr double kMostMs = 1e9;  // 11 days

std::string file_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

struct Line {
  std::vector<uint64_t> blocks;
  std::optional<double> ms;
};

Result<Line> read_line(const std::string& line, const std::string& where) {
  const auto parsed = nlohmann::json::parse(line, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("hash_ids") || !parsed["hash_ids"].is_array())
    return error(Code::kInvalidArgument, "{}: a line of JSON with hash_ids is wanted", where);
  Line out;
  for (const auto& id : parsed["hash_ids"]) {
    if (!id.is_number_unsigned())
      return error(Code::kInvalidArgument, "{}: hash_ids are whole numbers from 0 on", where);
    out.blocks.push_back(id.get<uint64_t>());
  }
  if (!parsed.contains("timestamp")) return out;
  const auto& time = parsed["timestamp"];
  if (!time.is_number() || !(time.get<double>() >= 0 && time.get<double>() <= kMostMs))
    return error(Code::kInvalidArgument, "{}: timestamp is in milliseconds from the trace's start, {:.0e} at most",
                 where, kMostMs);
  out.ms = time.get<double>();
  return out;
}

// TIMESTAMP,ContextTokens,GeneratedTokens
Result<std::pair<int, int>> read_lengths(const std::string& line, const std::string& where) {
  const size_t first = line.find(','), second = line.find(',', first + 1);
  int context = 0, generated = 0;
  const auto read = [&](size_t begin, int& value) {
    return begin < line.size() &&
           std::from_chars(line.data() + begin, line.data() + line.size(), value).ec == std::errc();
  };
  if (first == std::string::npos || second == std::string::npos || !read(first + 1, context) ||
      !read(second + 1, generated) || context < 0 || generated < 0 || context > 1 << 24 || generated > 1 << 24)
    return error(Code::kInvalidArgument,
                 "{}: time, context tokens and generated tokens are wanted, with commas between", where);
  return std::pair(context, generated);
}

// Text that somebody has said so far, as blocks that nobody else has.
class SaidSoFar {
 public:
  SaidSoFar(std::vector<uint64_t> before, uint64_t& next_block) : blocks_(std::move(before)), next_block_(&next_block) {
    tokens_ = static_cast<int>(blocks_.size()) * kOurBlock;
  }
  int tokens() const { return tokens_; }
  // Its first whole blocks after so many tokens are there.
  const std::vector<uint64_t>& grow(int tokens) {
    tokens_ = std::max(tokens_, tokens);
    while (static_cast<int>(blocks_.size()) < tokens_ / kOurBlock) blocks_.push_back((*next_block_)++);
    return blocks_;
  }

 private:
  std::vector<uint64_t> blocks_;
  uint64_t* next_block_;
  int tokens_ = 0;
};

// Times in order, and the requests with them; none where a line had none.
void set_times(std::vector<std::optional<double>> ms, Trace& trace) {
  if (!std::ranges::all_of(ms, [](const auto& one) { return one.has_value(); })) return;
  std::vector<size_t> order(ms.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return *ms[i]; });
  std::vector<std::vector<uint64_t>> requests;
  for (const size_t i : order) {
    requests.push_back(std::move(trace.requests[i]));
    trace.seconds.push_back((*ms[i] - *ms[order[0]]) / 1000);
  }
  trace.requests = std::move(requests);
}

// Rank 0 most often: Zipf with exponent 1.
class Zipf {
 public:
  explicit Zipf(int count) {
    double sum = 0;
    for (int i = 0; i < count; ++i) sums_.push_back(sum += 1.0 / (i + 1));
  }
  int operator()(std::mt19937_64& random) const {
    const double at = std::uniform_real_distribution<>(0, sums_.back())(random);
    return static_cast<int>(std::min(std::ranges::lower_bound(sums_, at) - sums_.begin(), std::ssize(sums_) - 1));
  }

 private:
  std::vector<double> sums_;
};

}  // namespace

Result<Trace> read_trace(const std::string& path, uint64_t seed) {
  std::ifstream file(path);
  if (!file) return error(Code::kNotFound, "{}: cannot read", path);
  Trace out{.name = file_name(path), .block_tokens = kMooncakeBlock, .requests = {}, .seconds = {}};
  std::vector<std::optional<double>> ms;
  std::mt19937_64 random(seed);
  uint64_t next_block = 0;
  std::vector<SaidSoFar> open;  // the last ones that somebody said something in, the newest last
  constexpr size_t kOpen = 64;
  constexpr double kGoesOn = 0.7;
  bool csv = false;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string where = fmt::format("{}:{}", path, number);
    if (number == 1 && line.starts_with("TIMESTAMP,")) {
      csv = true;
      out.block_tokens = kOurBlock;
      continue;
    }
    if (line.empty() || line == "\r") continue;
    if (!csv) {
      KVILT_ASSIGN(Line read, read_line(line, where));
      out.requests.push_back(std::move(read.blocks));
      ms.push_back(read.ms);
      continue;
    }
    KVILT_ASSIGN(const auto lengths, read_lengths(line, where));
    const auto [context, generated] = lengths;
    auto best = open.end();
    for (auto talk = open.begin(); talk != open.end(); ++talk) {
      if (talk->tokens() <= context && (best == open.end() || talk->tokens() >= best->tokens())) best = talk;
    }
    const bool goes_on = best != open.end() && std::uniform_real_distribution<>(0, 1)(random) < kGoesOn;
    SaidSoFar talk = goes_on ? *best : SaidSoFar({}, next_block);
    if (goes_on) open.erase(best);
    out.requests.push_back(talk.grow(context));
    talk.grow(context + generated);
    open.push_back(std::move(talk));
    if (open.size() > kOpen) open.erase(open.begin());
  }
  if (out.requests.empty()) return error(Code::kInvalidArgument, "{}: no requests in it", path);
  if (!csv) set_times(std::move(ms), out);
  return out;
}

Trace mixed_trace(int requests, uint64_t seed) {
  Trace out{.name = "mixed", .block_tokens = kOurBlock, .requests = {}, .seconds = {}};
  std::mt19937_64 random(seed);
  uint64_t next_block = 0;
  const auto between = [&](int low, int high) { return std::uniform_int_distribution<>(low, high)(random); };
  std::vector<std::vector<uint64_t>> systems, documents;
  for (int i = 0; i < 8; ++i) systems.push_back(SaidSoFar({}, next_block).grow(kOurBlock * between(2, 8)));
  const Zipf system(8), document(300);
  for (int i = 0; i < 300; ++i)
    documents.push_back(SaidSoFar(systems[0], next_block).grow(kOurBlock * between(12, 40)));
  std::vector<SaidSoFar> talks;
  for (int i = 0; i < requests; ++i) {
    const int kind = between(0, 9);
    if (kind < 5) {
      if (talks.size() < 200 || between(0, 7) == 0) {
        if (talks.size() >= 200) talks.erase(talks.begin() + between(0, 199));
        talks.emplace_back(systems[system(random)], next_block);
      }
      // Those that began last go on most.
      SaidSoFar& talk = talks[talks.size() - 1 - static_cast<size_t>(Zipf(static_cast<int>(talks.size()))(random))];
      out.requests.push_back(talk.grow(talk.tokens() + between(100, 900)));
      talk.grow(talk.tokens() + between(100, 600));
    } else if (kind < 8) {
      SaidSoFar asked(documents[document(random)], next_block);
      out.requests.push_back(asked.grow(asked.tokens() + kOurBlock));
    } else {
      out.requests.push_back(SaidSoFar(systems[0], next_block).grow(kOurBlock * between(20, 80)));
    }
  }
  return out;
}

}  // namespace kvilt
