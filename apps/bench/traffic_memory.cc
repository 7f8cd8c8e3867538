// apps/bench/traffic_memory.cc: the workload `memory` of `kvilt bench traffic`: what many small requests leave in the
// pool, and what a hot beginning keeps there.
// Method: 1. A library of known documents; every request asks over four of them in a new order, with a question of its
//            own. Then nobody runs, and every page in use should belong to tokens that look-ups can find.
//         2. One system prompt in front of a long text, then requests with the same system prompt and other texts,
//            until the pool has been written over. What is still found of the long prompt was kept by its hot beginning.
// Units:  a page is that of one KV head of one layer. Cached tokens need tokens / P of them a head and layer, and every
//         segment one more, since it begins and ends somewhere in a page.
#include <algorithm>
#include <random>

#include "apps/bench/traffic.h"
#include "apps/command.h"
#include "base/random.h"

namespace kvilt {
namespace {

// Pages that no cached segment has a token in. REQUIRES: nothing runs.
double unfindable_pages(const Engine& engine) {
  const EngineStats stats = engine.stats();
  return static_cast<double>(stats.kv_pages_used - stats.kv_pages_idle);
}

nlohmann::ordered_json pool_row(const std::string& what, const EngineStats& stats) {
  return {{"workload", "memory"},
          {"what", what},
          {"kv_pages", stats.kv_pages},
          {"kv_pages_used", stats.kv_pages_used},
          {"cached_tokens", stats.cached_tokens},
          {"cached_segments", stats.cached_segments},
          {"evicted_segments", stats.evicted_segments}};
}

// Of each request: the share of its prompt that was found.
std::vector<double> ask_over_library(TrafficBench& bench, Engine& engine, int requests, int documents) {
  constexpr int kDocumentTokens = 96, kAsked = 4;
  const TrafficFrame frame = traffic_frame(engine);
  TrafficText text(engine, bench.options().seed + 6);
  const auto library = text.next(documents, kDocumentTokens);
  for (const TokenIds& document : library)
    run_request(engine, traffic_request(bench.first_turn(frame, {document}, {}), 0));
  std::mt19937_64 rng(bench.options().seed);
  std::vector<int> order(library.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::vector<double> found;
  Progress progress("requests");
  for (int r = 0; r < requests; ++r) {
    progress.at(static_cast<double>(r) / requests);
    shuffle(order, rng);
    std::vector<TokenIds> asked;
    for (int i = 0; i < kAsked; ++i) asked.push_back(library[static_cast<size_t>(order[static_cast<size_t>(i)])]);
    const PromptUsage usage =
        run_request(engine, traffic_request(bench.first_turn(frame, asked, text.next(24)), 8)).usage();
    found.push_back(static_cast<double>(usage.prefix + usage.reused) / usage.prompt);
    bench.detail({{"workload", "memory"}, {"what", "request"}, {"found", found.back()}, {"ttft_s", usage.ttft_s}});
  }
  return found;
}

void many_requests(TrafficBench& bench) {
  const int requests = std::max(5, bench.given(bench.options().requests, 500, 60));
  const int documents = bench.of_size(40, 16);
  const auto engine = bench.open(bench.of_size(32768, 12288));
  const auto found = ask_over_library(bench, *engine, requests, documents);
  const size_t window = found.size() / 5;
  const double first = mean(std::span(found).first(window)), last = mean(std::span(found).last(window));
  const EngineStats stats = engine->stats();
  const double unfindable = unfindable_pages(*engine);
  bench.detail(pool_row("after all requests", stats));
  bench.figure("memory", "pages_used_share",
               static_cast<double>(stats.kv_pages_used) / static_cast<double>(stats.kv_pages));
  bench.figure("memory", "pages_unfindable_share", unfindable / static_cast<double>(stats.kv_pages));
  bench.figure("memory", "reuse_first", first);
  bench.figure("memory", "reuse_last_over_first", first > 0 ? last / first : 0);
}

// The longest exact prefix of `prompt` that the engine has now. The request is cancelled after its first step.
int kept_prefix(Engine& engine, Prompt prompt) {
  const auto sink = std::make_shared<TrafficSink>();
  Request request = traffic_request(std::move(prompt), 0, exact_quality());
  request.publish = false;
  const uint64_t steps = engine.stats().steps;
  const RequestId id = submit_traffic(engine, std::move(request), sink);
  while (engine.stats().steps == steps && !sink->wait_for(0.001)) {
  }
  engine.cancel(id);
  return sink->wait().usage.prefix;
}

void hot_prefix(TrafficBench& bench) {
  constexpr int kHot = 500;
  int long_tokens = bench.of_size(20000, 2500);
  {
    const auto engine = bench.open();
    long_tokens = std::min(long_tokens, engine->info().context - kHot - 64);
  }
  const int other_tokens = long_tokens / 10;
  const double pool = 1.5 * (long_tokens + kHot);
  const auto engine = bench.open(pool);
  TrafficText text(*engine, bench.options().seed + 8);
  const TokenIds hot = text.next(kHot);
  const auto after_hot = [&](int tokens) {
    Prompt out{hot, {}};
    const TokenIds rest = text.next(tokens);
    out.ids.insert(out.ids.end(), rest.begin(), rest.end());
    return out;
  };
  const Prompt first = after_hot(long_tokens);
  run_request(*engine, traffic_request(first, 0));
  for (double written = 0; written < pool; written += other_tokens)
    run_request(*engine, traffic_request(after_hot(other_tokens), 0));
  bench.detail(pool_row("after the hot prefix", engine->stats()));
  bench.figure("memory", "hot_prefix_tokens_kept", kept_prefix(*engine, first));
}

}  // namespace

void traffic_memory(TrafficBench& bench) {
  many_requests(bench);
  hot_prefix(bench);
}

}  // namespace kvilt
