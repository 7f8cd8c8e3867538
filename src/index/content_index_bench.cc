// index/content_index_bench.cc: cost of finding and of indexing with a million cached tokens.
// Run: content_index_bench. The counter per_token is the time per prompt token (insert_and_erase: per inserted token).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <span>

#include "index/content_index.h"

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

}  // namespace
}  // namespace kvilt

BENCHMARK_MAIN();
