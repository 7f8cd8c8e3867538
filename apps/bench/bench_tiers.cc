// apps/bench/bench_tiers.cc: kvilt bench tiers: one known prompt whose KV is computed again, in memory, or on disk; or
//         with --cache-redis in a Redis instead of on disk.
// Method: an engine caches the documents of a prompt and closes, so that the folder has them. Then in each round a new
//         engine opens the folder and answers the prompt, with a question that changes, three times: without any reuse;
//         from disk; and from memory, where the second answer left it. The bits of the first logits are compared. Files
//         leave the page cache before the disk is asked, unless --page-cache keeps them there. Medians are reported.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>

#include "apps/bench/rag_prompt.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

struct TiersOptions {
  EngineOptions engine;
  std::string synthetic = "8x512", json;
  int rounds = 5;
  uint64_t seed = 7;
  bool page_cache = false;
};

struct Place {
  const char* name;
  const char* policy;
  std::vector<double> ttft = {};
  PromptUsage usage = {};
};

void drop_from_page_cache(const std::string& folder) {
  for (const auto& item : fs::recursive_directory_iterator(folder)) {
    if (!item.is_regular_file()) continue;
    const int fd = ::open(item.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    ::fdatasync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
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

void bench_tiers(TiersOptions o, int argc, char** argv) {
  int count = 0, size = 0;
  if (o.rounds < 1) fail("--rounds must be at least 1");
  if (std::sscanf(o.synthetic.c_str(), "%dx%d", &count, &size) != 2 || count < 1 || size < 1 || count > 1000)
    fail("--synthetic: '" + o.synthetic + "' is not DOCUMENTSxTOKENS, as 8x512");
  std::string made;
  const bool redis = !o.engine.cache_redis.empty();
  if (!redis && o.engine.cache_dir.empty()) {
    made = (fs::temp_directory_path() / "kvilt_tiers_XXXXXX").string();
    if (!::mkdtemp(made.data())) fail(made + ": cannot be made; give --cache-dir");
    o.engine.cache_dir = made;
  }
  Report report(argc, argv);
  const std::vector<int> order = value_or_fail(piece_order("same", count, o.seed));
  RagPrompt prompt;
  {
    auto engine = open_or_exit(o.engine);
    report.set_model(engine->info());
    prompt = value_or_fail(synthetic_prompt(*engine, count, size, o.seed));
    RagPrompt documents = prompt;
    documents.tail.clear();
    Request warm;
    warm.prompt = documents.in_order(order, false);
    warm.policy.name = "full";
    warm.sampling.max_tokens = 0;
    run_request(*engine, std::move(warm));
  }
  std::vector<Place> places{{"computed", "full"}, {redis ? "redis" : "disk", "prefix"}, {"memory", "prefix"}};
  const std::vector<int32_t> tail = prompt.tail;
  bool equal = true;
  for (int round = 0; round < o.rounds; ++round) {
    auto engine = open_or_exit(o.engine);
    if (!o.page_cache && !o.engine.cache_dir.empty()) drop_from_page_cache(o.engine.cache_dir);
    prompt.tail.assign(tail.rbegin(), tail.rend());
    prompt.tail.push_back(static_cast<int32_t>(3 + round));
    std::vector<float> logits;
    for (Place& place : places) {
      const Answered out = ask_prefix(*engine, prompt, order, place);
      place.ttft.push_back(out.completion.usage.ttft_s);
      place.usage = out.completion.usage;
      if (logits.empty()) logits = out.completion.logits.first;
      equal = equal && logits == out.completion.logits.first;
    }
  }
  std::printf("%-10s %8s %8s %8s %9s %8s\n", "from", "prompt", "prefix", "read", "TTFT s", "+-");
  for (const Place& place : places) {
    std::printf("%-10s %8d %8d %8d %9.4f %8.4f\n", place.name, place.usage.prompt, place.usage.prefix,
                place.usage.disk + place.usage.remote, median(place.ttft), spread(place.ttft));
    report.add({{"from", place.name},
                {"prompt_tokens", place.usage.prompt},
                {"prefix_tokens", place.usage.prefix},
                {"disk_tokens", place.usage.disk},
                {"remote_tokens", place.usage.remote},
                {"ttft_s", median(place.ttft)},
                {"ttft_spread_s", spread(place.ttft)},
                {"rounds", o.rounds},
                {"page_cache", o.page_cache}});
  }
  std::printf("first logits: %s\n", equal ? "equal to the bit" : "NOT EQUAL");
  if (!made.empty()) fs::remove_all(made);
  report.write(o.json);
  if (!equal) fail("what came from the cache is not what is computed");
}

}  // namespace

void add_bench_tiers(Program& program, Command bench) {
  auto app = bench.add_subcommand("tiers", "time to first token of a known prompt: computed, from memory, from disk");
  auto o = std::make_shared<TiersOptions>();
  add_engine_options(app, o->engine, true);
  app.add_option("--synthetic", o->synthetic, "made-up documents: DOCUMENTSxTOKENS").show_default();
  app.add_option("--rounds", o->rounds, "measurements of each").show_default();
  app.add_option("--seed", o->seed, "of the documents").show_default();
  app.add_flag("--page-cache", o->page_cache, "leave the files in the page cache: what a disk of memory's speed gives");
  app.add_option("--json", o->json, "write the rows to this file");
  app.callback([o, &program] { bench_tiers(*o, program.argc, program.argv); });
}

}  // namespace kvilt
