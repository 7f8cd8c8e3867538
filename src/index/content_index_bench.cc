// index/content_index_bench.cc: cost of finding and of indexing with a million cached tokens.
// Run: content_index_bench. The counter per_token is the time per prompt token (insert_and_erase: per inserted token).
// find_near and its forms: a cache of made-up source files, asked as they were edited (edits_for_test.h). recall: of the
// tokens in runs of 8 that brute force finds in the one source, the share that is found; exact: by find_pieces alone.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <numeric>
#include <random>
#include <span>

#include "index/content_index.h"
#include "index/edits_for_test.h"

namespace kvilt {
namespace {

constexpr int32_t kCached = 1'000'000, kSegmentTokens = 2000, kPrompt = 4096, kVocabulary = 150'000, kPiece = 256;

std::vector<int32_t> random_ids(std::mt19937_64& random, int32_t count) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % kVocabulary);
  return ids;
}

struct Cache {
  std::mt19937_64 random{1};
  ContentIndex index{HashSecret::random()};
  DomainId domain = index.domain("model", "", "salt");
  std::vector<std::vector<int32_t>> texts;

  Cache() {
    for (SegmentId id = 1; id <= kCached / kSegmentTokens; ++id) {
      texts.push_back(random_ids(random, kSegmentTokens));
      index.insert(id, {.tokens = texts.back(), .domain = domain, .exact = true});
    }
  }
  std::vector<int32_t> known(int32_t count) {
    const auto& text = texts[random() % texts.size()];
    const auto begin = text.begin() + static_cast<ptrdiff_t>(random() % (text.size() - count + 1));
    return {begin, begin + count};
  }
};

Cache& cache() {
  static Cache cache;
  return cache;
}

void append(std::vector<int32_t>& to, const std::vector<int32_t>& ids) { to.insert(to.end(), ids.begin(), ids.end()); }

// Pieces of kPiece tokens; every `period`-th is known (0: none).
std::vector<int32_t> prompt_of(int period) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < kPrompt / kPiece; ++i) {
    append(prompt, period > 0 && i % period == 0 ? cache().known(kPiece) : random_ids(cache().random, kPiece));
  }
  return prompt;
}

void report(benchmark::State& state, int64_t tokens) {
  state.counters["per_token"] = benchmark::Counter(
      static_cast<double>(tokens), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void find_pieces(benchmark::State& state) {
  // Several prompts, one after the other: branch predictor and caches would learn a single one by heart.
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 16; ++i) prompts.push_back(prompt_of(static_cast<int>(state.range(0))));
  size_t next = 0;
  int64_t found = 0, asked = 0;
  for (auto _ : state) {
    const auto& prompt = prompts[next++ % prompts.size()];
    for (const Piece& p : cache().index.find_pieces(prompt, 0, cache().domain, 32, {})) found += p.count;
    asked += kPrompt;
  }
  state.counters["found"] = static_cast<double>(found) / static_cast<double>(asked);
  report(state, kPrompt);
}
BENCHMARK(find_pieces)->ArgName("known_1_in")->Arg(0)->Arg(2)->Arg(1);

void find_pieces_newlines(benchmark::State& state) {
  Cache repeated;
  for (SegmentId id = 10'000; id < 10'020; ++id) {
    repeated.index.insert(id, {.tokens = std::vector<int32_t>(kSegmentTokens, 198), .domain = repeated.domain});
  }
  const std::vector<int32_t> prompt(kPrompt, 198);
  for (auto _ : state) benchmark::DoNotOptimize(repeated.index.find_pieces(prompt, 0, repeated.domain, 32, {}));
  report(state, kPrompt);
}
BENCHMARK(find_pieces_newlines);

void find_prefix(benchmark::State& state) {
  size_t next = 0;
  for (auto _ : state) {
    const auto& text = cache().texts[next++ % cache().texts.size()];
    benchmark::DoNotOptimize(cache().index.find_prefix(text, cache().domain, kSegmentTokens - 1));
  }
  report(state, kSegmentTokens);
}
BENCHMARK(find_prefix);

// One segment in, one out, with the cache full.
void insert_and_erase(benchmark::State& state) {
  const bool exact = state.range(0) != 0;
  SegmentId id = 1'000'000;
  const std::vector<int32_t> ids = random_ids(cache().random, kSegmentTokens);
  for (auto _ : state) {
    cache().index.insert(++id, {.tokens = ids, .domain = cache().domain, .exact = exact});
    cache().index.erase(id);
  }
  report(state, kSegmentTokens);
  state.counters["bytes_token"] =
      static_cast<double>(cache().index.bytes()) / static_cast<double>(cache().index.tokens());
}
BENCHMARK(insert_and_erase)->ArgName("exact")->Arg(0)->Arg(1);

// ---- A million pieces: look-ups among them, and the longest insert on the way there

constexpr SegmentId kPieces = 1'000'000;
constexpr int32_t kPieceTokens = 64;

// Of this thread, the system's work for it included: neighbours do not count.
double cpu_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// Every piece begins a chain and is marked, so that all tables grow. Continuations are kept, as a server does; near
// duplicates are asked for from the 900,000th piece on, and a part of those known before comes with each insert.
struct Million {
  std::mt19937_64 random{3};
  ContentIndex index{HashSecret::fixed(3)};
  DomainId domain = index.domain("model", "", "");
  std::vector<std::vector<int32_t>> some;  // of the pieces
  double worst_us = 0, total_us = 0;

  double near_us = 0;  // the longest of the parts

  Million() {
    index.keep_continuations();
    for (SegmentId id = 1; id <= kPieces; ++id) {
      std::vector<int32_t> ids = random_ids(random, kPieceTokens);
      if (id % 1000 == 0) some.push_back(ids);
      const Run whole{0, kPieceTokens};
      const double begin = cpu_us();
      index.insert(id, {.tokens = ids, .domain = domain, .exact = true});
      index.add_mark(id, 0, kPieceTokens);
      index.add_clean(id, 0, ids, whole);
      const double us = cpu_us() - begin;
      worst_us = std::max(worst_us, us);
      total_us += us;
      if (id < kPieces / 10 * 9) continue;
      const double before = cpu_us();
      index.keep_near();
      index.near_more(1 << 10);  // as engine/content_cache.h
      near_us = std::max(near_us, cpu_us() - before);
    }
  }
};

Million& million() {
  static Million million;
  return million;
}

// worst_us: the longest of the million inserts; near_us: of the parts of near duplicates.
void million_find_pieces(benchmark::State& state) {
  Million& of = million();
  std::vector<std::vector<int32_t>> prompts(16);
  for (auto& prompt : prompts) {
    for (int32_t i = 0; i < kPrompt / kPieceTokens; ++i) {
      append(prompt, i % 2 == 0 ? of.some[of.random() % of.some.size()] : random_ids(of.random, kPieceTokens));
    }
  }
  size_t next = 0;
  int64_t found = 0, asked = 0;
  for (auto _ : state) {
    const auto& prompt = prompts[next++ % prompts.size()];
    benchmark::DoNotOptimize(of.index.find_prefix(prompt, of.domain, kPrompt - 1));
    for (const Piece& p : of.index.find_pieces(prompt, 0, of.domain, 32, {})) found += p.count;
    asked += kPrompt;
  }
  state.counters["found"] = static_cast<double>(found) / static_cast<double>(asked);
  state.counters["worst_us"] = of.worst_us;
  state.counters["near_us"] = of.near_us;
  state.counters["mean_us"] = of.total_us / static_cast<double>(kPieces);
  state.counters["bytes_token"] = static_cast<double>(of.index.bytes()) / static_cast<double>(of.index.tokens());
  report(state, kPrompt);
}
BENCHMARK(million_find_pieces);

// ---- Near duplicates

constexpr int32_t kLeast = 8, kTogether = 32, kLines = 200, kFiles = 300;  // about 900,000 tokens
const char* const kForms[] = {"new", "numbered", "indented", "escaped", "notes", "1", "5", "20"};

struct Sources {
  std::mt19937_64 random{2};
  ContentIndex index{HashSecret::random()};
  DomainId domain = index.domain("model", "", "salt");
  std::vector<Lines> files;

  explicit Sources(bool near) {
    if (near) index.keep_near();
    for (SegmentId id = 1; id <= kFiles; ++id) {
      files.push_back(made_up_lines(kLines, random));
      index.insert(id, {.tokens = joined(files.back()), .domain = domain, .exact = true});
    }
  }
};

Sources& sources() {
  static Sources sources(true);
  return sources;
}

int64_t covered(const std::vector<Piece>& pieces, const std::vector<bool>& of) {
  int64_t out = 0;
  for (const Piece& piece : pieces)
    out += std::count(of.begin() + piece.pos, of.begin() + piece.pos + piece.count, true);
  return out;
}

// Finding as a request does it: pieces first, near duplicates in what they leave.
void find_near(benchmark::State& state) {
  const std::string form = kForms[state.range(0)];
  Sources& of = sources();
  struct Asked {
    std::vector<int32_t> prompt;
    Runs all;
    std::vector<Piece> known;
    ContentIndex::NearQuery query() const { return {prompt, all, known, kLeast, kTogether}; }
  };
  std::vector<Asked> prompts;
  int64_t there = 0, near = 0, exact = 0, tokens = 0;
  for (size_t i = 0; i < 8; ++i) {
    const Lines& lines = form == "new" ? made_up_lines(kLines, of.random) : of.files[i * 37];
    Asked& asked = prompts.emplace_back();
    asked.prompt = form == "new" ? joined(lines) : edited(lines, form, of.random);
    asked.all = {{0, static_cast<int32_t>(asked.prompt.size())}};
    asked.known = of.index.find_pieces(asked.prompt, 0, of.domain, kTogether, {});
    const auto equal = equal_runs(asked.prompt, joined(lines), kLeast);
    there += std::count(equal.begin(), equal.end(), true), tokens += std::ssize(asked.prompt);
    exact += covered(asked.known, equal), near += covered(of.index.find_near(asked.query(), of.domain), equal);
  }
  size_t next = 0;
  for (auto _ : state) {
    const Asked& asked = prompts[next++ % prompts.size()];
    benchmark::DoNotOptimize(of.index.find_near(asked.query(), of.domain));
  }
  const auto share = [](int64_t a, int64_t b) { return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0; };
  state.SetLabel(form);
  if (form != "new") {
    state.counters["there"] = share(there, tokens);
    state.counters["recall"] = share(near + exact, there);
    state.counters["exact"] = share(exact, there);
  }
  report(state, tokens / std::ssize(prompts));
}
BENCHMARK(find_near)->DenseRange(0, 7);

void insert_and_erase_near(benchmark::State& state) {
  static Sources without(false);
  Sources& of = state.range(0) != 0 ? sources() : without;
  SegmentId id = 1'000'000;
  const std::vector<int32_t> ids = joined(made_up_lines(kLines, of.random));
  for (auto _ : state) {
    of.index.insert(++id, {.tokens = ids, .domain = of.domain});
    of.index.erase(id);
  }
  report(state, std::ssize(ids));
  state.counters["bytes_token"] = static_cast<double>(of.index.bytes()) / static_cast<double>(of.index.tokens());
}
BENCHMARK(insert_and_erase_near)->ArgName("near")->Arg(0)->Arg(1);

}  // namespace
}  // namespace kvilt

BENCHMARK_MAIN();
