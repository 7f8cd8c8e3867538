// apps/bench/bench_tiers.cc: kvilt bench tiers: one known prompt whose KV is computed again, in memory, on disk, and with
//         --cache-redis in a Redis.
// Method: an engine for each store caches the documents of a prompt and closes, so that the store has them. Then in each
//         round a new engine opens the store and answers the prompt, with a question that changes: without any reuse;
//         from the store; and from memory, where the second answer left it. The bits of the first logits are compared.
//         Computing takes far longer than the rest: after --computed rounds it is left out, and other documents of the
//         same size are asked for first, from the store, so that the engine has used its memory as a server has.
//         Files leave the page cache before the disk is asked, unless --page-cache keeps them there. Then the same bytes
//         are plainly read from the store, by nobody's format and unchecked: what memory takes and these reads are the
//         bound of a store that reads first and computes then; the longer of the two is the bound of one that does both
//         at once. From disk the prompt is asked for twice: layer by layer while it computes, and read first
//         (docs/design/disk.md#layer-by-layer). Medians are reported.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "apps/bench/bench_folder.h"
#include "apps/bench/rag_prompt.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "base/open_file.h"
#include "tier/redis_connection.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

struct TiersOptions {
  EngineOptions engine;
  std::string synthetic = "8x512", json;
  int rounds = 5, computed = 5;
  uint64_t seed = 7;
  bool page_cache = false;
};

// What is asked for, and what warms an engine up.
struct Prompts {
  RagPrompt asked, other;
};

struct Place {
  const char* name;
  const char* policy;
  std::vector<double> ttft = {};
  PromptUsage usage = {};
  std::vector<double> plain_rate = {};  // bytes a second
};

// A place beside memory, and the options of an engine that has no other.
struct Store {
  Place place;
  EngineOptions engine;
  bool first = false;  // all is read before anything is computed
};

std::unique_ptr<Engine> open(const Store& store) {
  const char *const layers = "KVILT_LOAD_LAYERS", *const given = std::getenv(layers);
  if (!store.first) return open_or_exit(store.engine);
  const std::string before = given ? given : "";
  setenv(layers, "0", 1);
  auto engine = open_or_exit(store.engine);
  given ? setenv(layers, before.c_str(), 1) : unsetenv(layers);
  return engine;
}

void drop_folder(const std::string& folder) {
  for (const auto& item : fs::recursive_directory_iterator(folder)) {
    if (item.is_regular_file()) drop_from_page_cache(item.path().string());
  }
}

// Bytes a second of reading all files of the cache, up to a GiB.
double plain_disk_rate(const std::string& folder) {
  std::vector<char> room(size_t{4} << 20);
  double bytes = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& item : fs::recursive_directory_iterator(folder)) {
    if (!item.is_regular_file() || bytes > double{1 << 30}) continue;
    const OpenFile file(::open(item.path().c_str(), O_RDONLY | O_CLOEXEC));
    for (ssize_t n = 1; file.fd() >= 0 && n > 0; bytes += static_cast<double>(n))
      n = std::max<ssize_t>(0, ::read(file.fd(), room.data(), room.size()));
  }
  return bytes / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Of GETs of the chunks that a Redis has, one after the other, up to a GiB.
double plain_redis_rate(const std::string& address) {
  constexpr std::chrono::seconds kPatience{60};
  const RedisAddress to = value_or_fail(parse_redis_address(address));
  if (!to.password.empty() || to.db != 0) return 0;  // log-ins are the tier's
  const auto connection = value_or_fail(RedisConnection::open(to, kPatience));
  const RedisCommand keys{"KEYS", "kvilt:*:v:*"};
  const auto found = value_or_fail(connection->ask({&keys, 1}, kPatience, int64_t{1} << 28));
  double bytes = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (const RedisReply& key : found.front().array) {
    if (bytes > double{1 << 30}) break;
    const RedisCommand get{"GET", key.text};
    bytes +=
        static_cast<double>(value_or_fail(connection->ask({&get, 1}, kPatience, int64_t{1} << 30)).front().text.size());
  }
  return bytes / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Answered ask_prefix(Engine& engine, const RagPrompt& prompt, const std::vector<int>& order, const Place& place) {
  Request request;
  request.prompt = prompt.in_order(order, false);
  request.policy.name = place.policy;
  request.sampling.max_tokens = 1;
  request.sampling.temperature = 0;
  request.publish = false;
  request.evaluation.first_logits = true;
  return run_request(engine, std::move(request));
}

void compute(Engine& engine, RagPrompt documents) {
  documents.tail.clear();
  Request warm;
  warm.prompt =
      documents.in_order(value_or_fail(piece_order("same", static_cast<int>(documents.pieces.size()), 0)), false);
  warm.policy.name = "full";
  warm.sampling.max_tokens = 0;
  run_request(engine, std::move(warm));
}

// The documents of the prompts are in the store when it returns.
Prompts fill(const TiersOptions& o, const Store& store, int64_t& token_bytes, Report& report) {
  int count = 0, size = 0;
  if (std::sscanf(o.synthetic.c_str(), "%dx%d", &count, &size) != 2 || count < 1 || size < 1 || count > 1000)
    fail("--synthetic: '" + o.synthetic + "' is not DOCUMENTSxTOKENS, as 8x512");
  auto engine = open_or_exit(store.engine);
  report.set_model(engine->info());
  token_bytes = engine->info().kv_bytes_per_token;
  Prompts out{value_or_fail(synthetic_prompt(*engine, count, size, o.seed)),
              value_or_fail(synthetic_prompt(*engine, count, size, o.seed + 1))};
  compute(*engine, out.asked);
  if (o.computed < o.rounds) compute(*engine, out.other);
  return out;
}

std::vector<Store> stores_of(const TiersOptions& o) {
  std::vector<Store> out{{{"disk", "prefix"}, o.engine}, {{"disk first", "prefix"}, o.engine, true}};
  for (Store& disk : out) disk.engine.cache_redis.clear();
  if (o.engine.cache_redis.empty()) return out;
  out.push_back({{"redis", "prefix"}, o.engine});
  out.back().engine.cache_dir.clear();
  return out;
}

// One engine after the other, each with one of the stores. False: some logits differ.
bool measure(const TiersOptions& o, Prompts prompts, Place& computed, Place& memory, std::vector<Store>& stores) {
  RagPrompt& prompt = prompts.asked;
  const std::vector<int> order = value_or_fail(piece_order("same", static_cast<int>(prompt.pieces.size()), o.seed));
  const std::vector<int32_t> tail = prompt.tail;
  bool equal = true;
  for (int round = 0; round < o.rounds; ++round) {
    prompt.tail.assign(tail.rbegin(), tail.rend());
    prompt.tail.push_back(static_cast<int32_t>(3 + round));
    std::vector<float> logits;
    for (Store& store : stores) {
      const std::string& folder = store.engine.cache_dir;
      {
        auto engine = open(store);
        if (!o.page_cache && !folder.empty()) drop_folder(folder);
        std::vector<Place*> places{&computed, &store.place, &memory};
        if (round >= o.computed) {
          ask_prefix(*engine, prompts.other, order, store.place);
          places.erase(places.begin());
        }
        for (Place* place : places) {
          const Answered out = ask_prefix(*engine, prompt, order, *place);
          place->ttft.push_back(out.completion.usage.ttft_s);
          place->usage = out.completion.usage;
          if (logits.empty()) logits = out.completion.logits.first;
          equal = equal && logits == out.completion.logits.first;
        }
      }
      if (!o.page_cache && !folder.empty()) drop_folder(folder);
      store.place.plain_rate.push_back(folder.empty() ? plain_redis_rate(store.engine.cache_redis)
                                                      : plain_disk_rate(folder));
    }
  }
  return equal;
}

// memory_s: 0 for what needs no reads.
void tell(const Place& place, double memory_s, int64_t token_bytes, const TiersOptions& o, Report& report) {
  const int64_t read = place.usage.disk + place.usage.remote, bytes = read * token_bytes;
  const double rate = median(place.plain_rate);
  const double read_s = rate > 0 ? static_cast<double>(bytes) / rate : 0;
  const double bound = rate > 0 ? memory_s + read_s : 0, at_once = rate > 0 ? std::max(memory_s, read_s) : 0;
  std::printf("%-10s %8d %8d %8lld %9.4f %8.4f", place.name, place.usage.prompt, place.usage.prefix,
              static_cast<long long>(read), median(place.ttft), spread(place.ttft));
  if (bound > 0) std::printf(" %9.4f %9.4f %8.2f %9.2f", bound, at_once, median(place.ttft) / memory_s, rate / 1e9);
  std::printf("\n");
  report.add({{"from", place.name},
              {"prompt_tokens", place.usage.prompt},
              {"prefix_tokens", place.usage.prefix},
              {"disk_tokens", place.usage.disk},
              {"remote_tokens", place.usage.remote},
              {"read_bytes", bytes},
              {"plain_gb_s", rate / 1e9},
              {"ttft_s", median(place.ttft)},
              {"ttft_spread_s", spread(place.ttft)},
              {"bound_s", bound},
              {"bound_at_once_s", at_once},
              {"rounds", o.rounds},
              {"page_cache", o.page_cache}});
}

void bench_tiers(TiersOptions o, int argc, char** argv) {
  if (o.rounds < 1) fail("--rounds must be at least 1");
  if (o.computed < 1) fail("--computed must be at least 1");
  BenchFolder folder(o.engine.cache_dir);
  Report report(argc, argv);
  std::vector<Store> stores = stores_of(o);
  Prompts prompts;
  int64_t token_bytes = 0;
  for (const Store& store : stores) {
    if (!store.first) prompts = fill(o, store, token_bytes, report);  // it has the folder of the one before
  }
  Place computed{"computed", "full"}, memory{"memory", "prefix"};
  const bool equal = measure(o, std::move(prompts), computed, memory, stores);
  std::printf("%-10s %8s %8s %8s %9s %8s %9s %9s %8s %9s\n", "from", "prompt", "prefix", "read", "TTFT s", "+-",
              "bound s", "at once s", "of mem.", "plain GB/s");
  tell(computed, 0, token_bytes, o, report);
  for (const Store& store : stores) tell(store.place, median(memory.ttft), token_bytes, o, report);
  tell(memory, 0, token_bytes, o, report);
  std::printf("first logits: %s\n", equal ? "equal to the bit" : "NOT EQUAL");
  folder.remove();
  report.write(o.json);
  if (!equal) fail("what came from the cache is not what is computed");
}

}  // namespace

void add_bench_tiers(Program& program, Command bench) {
  auto app = bench.add_subcommand(
      "tiers", "time to first token of a known prompt: computed, from memory, from disk, from a Redis");
  auto o = std::make_shared<TiersOptions>();
  add_engine_options(app, o->engine, true);
  app.add_option("--synthetic", o->synthetic, "made-up documents: DOCUMENTSxTOKENS").show_default();
  app.add_option("--rounds", o->rounds, "measurements of each").show_default();
  app.add_option("--computed", o->computed, "rounds in which it is also computed; the others take far less time")
      .show_default();
  app.add_option("--seed", o->seed, "of the documents").show_default();
  app.add_flag("--page-cache", o->page_cache, "leave the files in the page cache: what a disk of memory's speed gives");
  app.add_option("--json", o->json, "write the rows to this file");
  app.callback([o, &program] { bench_tiers(*o, program.argc, program.argv); });
}

}  // namespace kvilt
