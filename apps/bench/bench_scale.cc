// apps/bench/bench_scale.cc: kvilt bench scale: one trace over 1 to 1,000 simulated servers (scale_fleet.h).
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>

#include "apps/bench/scale_fleet.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "index/chain_index.h"
#include "tier/redis_tier.h"

namespace kvilt {
namespace {

struct ScaleOptions {
  std::string trace, json, servers = "1,10,100,1000", routes = "round-robin,least-loaded,prefix,hash";
  std::string traffic = "grow", redis = "both", model = "0.5b";
  double token_bytes = 0;
  int64_t redis_bytes = int64_t{256} << 30;
  int engine_up_to = 1;
  FleetTraffic load;
  double share = .1;  // of the trace that a server brings
  FleetOptions fleet{.prefill = 6000};
};

// KV of a token in bf16: two rows of head size times KV heads, in each layer.
struct KnownModel {
  const char* name;
  int layers, kv_heads, head_size;
  double token_bytes() const { return 2.0 * layers * kv_heads * head_size * 2; }
};
constexpr KnownModel kModels[] = {{"0.5b", 24, 2, 64}, {"8b", 32, 8, 128}, {"70b", 80, 8, 128}};

double token_bytes_of(const ScaleOptions& o) {
  if (o.token_bytes > 0) return o.token_bytes;
  for (const KnownModel& model : kModels) {
    if (o.model == model.name) return model.token_bytes();
  }
  fail("--model: 0.5b, 8b or 70b is wanted");
}

// What is asked of Redis, a second: design/redis.md says where each comes from.
struct AskedOfRedis {
  double in = 0, out = 0;  // bytes of KV
  double records = 0;      // bytes: all others fetch each piece's record and line
  double listed = 0;       // bytes: all fetch all ids once a minute
  double commands = 0;
  double total_out() const { return out + records + listed; }
};

AskedOfRedis asked_of_redis(const FleetOutcome& got, const FleetOptions& o) {
  constexpr double kListedId = 22;  // bytes: 16 digits, and what the protocol adds
  constexpr double kListEvery = std::chrono::duration<double>(RedisTier::kListEvery).count();
  constexpr double kNewsASecond = 1 / std::chrono::duration<double>(RedisTier::kNewsEvery).count();
  constexpr double kCommandsOfPiece = 5;  // is its parent there, keep it, the record, the set, the stream
  const double others = o.servers - 1, chunk_bytes = o.token_bytes * StoredPiece::kChunkTokens;
  const double pieces = got.piece_seconds / got.seconds;  // that are there, on the average
  AskedOfRedis out;
  out.in = got.in.total() / got.seconds;
  out.out = got.out.total() / got.seconds;
  out.records = others * got.records / got.seconds;
  out.listed = o.servers * pieces * kListedId / kListEvery;
  out.commands = (out.in + out.out) / chunk_bytes + kCommandsOfPiece * got.written.total() / got.seconds +
                 o.servers * kNewsASecond + others * got.written.total() / got.seconds +
                 o.servers * pieces / RedisTier::kIdsAtOnce / kListEvery;
  return out;
}

nlohmann::ordered_json row_of(const ScaleOptions& o, const FleetOptions& fleet, const FleetOutcome& got) {
  const double of_block = static_cast<double>(fleet.block_tokens) / ChainIndex::kBlockTokens;  // events
  nlohmann::ordered_json row{
      {"traffic", o.traffic},
      {"servers", fleet.servers},
      {"route", kRouteNames[static_cast<int>(fleet.rule)]},
      {"redis", fleet.redis},
      {"cache", fleet.engine ? "engine" : "extents"},
      {"requests", got.requests},
      {"seconds", got.seconds},
      {"prompt_tokens", got.blocks * fleet.block_tokens},
      {"hit_share", got.hit_rate()},
      {"memory_share", got.share(got.local)},
      {"redis_share", got.share(got.read)},
      {"elsewhere_share", got.share(got.elsewhere)},
      {"busy_share", got.busy_share()},
      {"worst_over_mean", got.worst_over_mean()},
      {"wait_median_s", got.waited_median_s},
      {"wait_p99_s", got.waited_p99_s},
      {"events_server_s", (got.stored.total() + got.removed.total()) * of_block / got.seconds / fleet.servers},
      {"events_stored_s", got.stored.total() * of_block / got.seconds},
      {"events_removed_s", got.removed.total() * of_block / got.seconds},
      {"events_busiest_s", got.told.busiest() * of_block},
      {"router_entries", static_cast<double>(got.told_most) * of_block}};
  if (!fleet.redis) return row;
  const AskedOfRedis asked = asked_of_redis(got, fleet);
  row.update({{"twin_share", got.share(got.twins)},
              {"redis_in_s", asked.in},
              {"redis_in_busiest_s", got.in.busiest()},
              {"redis_out_s", asked.out},
              {"redis_out_busiest_s", got.out.busiest()},
              {"redis_records_s", asked.records},
              {"redis_listed_s", asked.listed},
              {"redis_commands_s", asked.commands},
              {"redis_held_bytes", static_cast<double>(got.held_blocks) * fleet.block_tokens * fleet.token_bytes},
              {"redis_held_tokens", got.held_blocks * fleet.block_tokens},
              {"redis_keys", got.held_blocks * fleet.block_tokens / StoredPiece::kChunkTokens + got.held_pieces},
              {"redis_dropped_share",
               got.put_blocks > 0 ? static_cast<double>(got.dropped_blocks) / static_cast<double>(got.put_blocks) : 0},
              {"redis_lost_share", got.share(got.lost)}});
  return row;
}

void print_scale_head() {
  std::printf("%7s %-12s %-5s %-7s | %5s %6s %5s %9s %5s | %7s %7s %7s %9s | %8s %10s %8s | %5s %6s %7s\n", "servers",
              "route", "redis", "cache", "hit", "memory", "redis", "elsewhere", "twins", "in MB/s", "out MB/s",
              "records", "commands", "events/s", "at router", "entries", "busy", "worst", "p99 s");
}

void print_scale_row(const nlohmann::ordered_json& row) {
  const auto number = [&](const char* name) { return row.contains(name) ? row[name].get<double>() : 0.0; };
  std::printf("%7d %-12s %-5s %-7s | ", row["servers"].get<int>(), row["route"].get<std::string>().c_str(),
              row["redis"].get<bool>() ? "yes" : "no", row["cache"].get<std::string>().c_str());
  std::printf("%5.3f %6.3f %5.3f %9.3f %5.3f | ", number("hit_share"), number("memory_share"), number("redis_share"),
              number("elsewhere_share"), number("twin_share"));
  std::printf("%7.0f %7.0f %7.0f %9.0f | ", number("redis_in_s") / 1e6, number("redis_out_s") / 1e6,
              (number("redis_records_s") + number("redis_listed_s")) / 1e6, number("redis_commands_s"));
  std::printf("%8.0f %10.0f %7.1fM | ", number("events_server_s"),
              number("events_stored_s") + number("events_removed_s"), number("router_entries") / 1e6);
  std::printf("%5.3f %6.2f %7.2f\n", number("busy_share"), number("worst_over_mean"), number("wait_p99_s"));
  std::fflush(stdout);
}

// grow: each server brings a share of a trace; what is less than one are some of its conversations. split: there is one
// trace, whoever serves it.
Traffic traffic_for(const ScaleOptions& o, const Trace& trace, int servers) {
  FleetTraffic load = o.load;
  if (o.traffic == "grow") {
    load.share = std::min(1.0, servers * o.share);
    load.copies = std::max(1, static_cast<int>(std::lround(servers * o.share)));
  }
  return Traffic(trace, load);
}

void bench_scale(const ScaleOptions& o, int argc, char** argv) {
  const Trace trace = value_or_fail(read_trace(o.trace, o.load.seed));
  if (trace.seconds.empty())
    fail(o.trace + ": its requests have no times; lines of JSON with hash_ids and timestamp are wanted");
  for (const double value : {o.token_bytes, o.fleet.prefill, o.fleet.io, o.fleet.redis_delay, o.fleet.event_delay,
                             o.share, o.load.until_s, o.load.slow, o.load.shift_s, o.load.common}) {
    if (!std::isfinite(value)) fail("an option is not a finite number");
  }
  FleetOptions fleet = o.fleet;
  fleet.block_tokens = trace.block_tokens;
  fleet.token_bytes = token_bytes_of(o);
  fleet.redis_bytes = o.redis_bytes;
  fleet.seed = o.load.seed;
  std::vector<RouteRule> rules;
  for (const std::string& name : split_commas(o.routes)) {
    const std::optional<RouteRule> rule = route_rule(name);
    if (!rule) fail("--routes: '" + name + "' is none of round-robin, least-loaded, prefix, hash");
    rules.push_back(*rule);
  }
  if (rules.empty()) fail("--routes: give at least one");
  Report report(argc, argv);
  const auto began = std::chrono::steady_clock::now();
  std::printf("%s, %s; a token's KV takes %.0f bytes\n", trace.name.c_str(), o.traffic.c_str(), fleet.token_bytes);
  std::printf("common to all copies: %zu blocks\n", Traffic(trace, o.load).common());
  print_scale_head();
  for (const int servers : split_numbers(o.servers, "--servers")) {
    if (servers > kMostServers) fail("--servers: " + std::to_string(kMostServers) + " at most");
    for (const RouteRule rule : rules) {
      for (const bool redis : {false, true}) {
        if (o.redis == (redis ? "off" : "on")) continue;
        fleet.servers = servers;
        fleet.rule = rule;
        fleet.redis = redis;
        fleet.engine = servers <= o.engine_up_to;
        report.add(row_of(o, fleet, simulate_fleet(traffic_for(o, trace, servers), fleet)));
        print_scale_row(report.rows().back());
      }
    }
  }
  struct rusage used {};
  getrusage(RUSAGE_SELF, &used);
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::printf("it took %.0f s and at most %.0f MB\n", took, static_cast<double>(used.ru_maxrss) / 1024);
  report.write(o.json);
}

}  // namespace

void add_bench_scale(Program& program, Command bench) {
  auto app = bench.add_subcommand(
      "scale", "a trace over many simulated servers: hits, what is asked of one Redis, KV events, loads");
  auto o = std::make_shared<ScaleOptions>();
  app.add_option("--trace", o->trace, "Mooncake's JSON lines, with hash_ids and timestamp").required();
  app.add_option("--servers", o->servers, "how many, comma-separated").show_default();
  app.add_option("--routes", o->routes, "who gets a request, comma-separated: round-robin, least-loaded, prefix, hash")
      .show_default();
  app.add_option("--traffic", o->traffic, "grow: each server brings --share of a trace; split: one trace for all")
      .one_of({"grow", "split"})
      .show_default();
  app.add_option("--redis", o->redis, "a Redis that all share: on, off or both").one_of({"on", "off", "both"});
  app.add_option("--model", o->model, "whose KV, in bf16: 0.5b (12 KiB a token), 8b (128 KiB), 70b (320 KiB)")
      .one_of({"0.5b", "8b", "70b"})
      .show_default();
  app.add_option("--token-bytes", o->token_bytes, "of KV, instead of --model's").range(1.0, 1e9);
  app.add_option("--pool", o->fleet.pool_tokens, "tokens that a server's memory holds").range(1.0, 1e8).show_default();
  app.add_option("--prefill", o->fleet.prefill, "tokens a second that a server computes; 0: it takes no time")
      .range(0.0, 1e12)
      .show_default();
  app.add_option("--io", o->fleet.io, "bytes a second between a server and Redis, each way; 0: it takes no time")
      .range(0.0, 1e15)
      .show_default();
  app.add_option("--redis-bytes", o->redis_bytes, "of KV that Redis has room for; 0: no bound").bytes();
  app.add_option("--redis-delay", o->fleet.redis_delay, "seconds from written until all others know")
      .range(0.0, 1e6)
      .show_default();
  app.add_option("--event-delay", o->fleet.event_delay, "seconds until the router knows what is cached")
      .range(0.0, 1e6)
      .show_default();
  app.add_option("--hash-blocks", o->fleet.hash_blocks, "of a prompt's beginning, which route hash looks at")
      .range(1, 1 << 20)
      .show_default();
  app.add_option("--share", o->share, "of a trace's load that a server brings: 0.1 are ten servers for each copy")
      .range(1e-4, 10.0)
      .show_default();
  app.add_option("--until", o->load.until_s, "use the trace's first seconds only; 0: all of it").range(0.0, 1e9);
  app.add_option("--slow", o->load.slow, "the trace's times are so many times as long").range(1e-3, 1e4).show_default();
  app.add_option("--shift", o->load.shift_s, "copies begin within so many seconds").range(0.0, 1e6).show_default();
  app.add_option("--common", o->load.common, "a block that this share of the requests has is the same in all copies")
      .range(0.0, 2.0)
      .show_default();
  app.add_option("--engine-up-to", o->engine_up_to,
                 "with so many servers or fewer the pools are the engine's content caches, index and all")
      .range(0, kMostServers)
      .show_default();
  app.add_option("--seed", o->load.seed, "of the shifts and of the hashes").show_default();
  app.add_option("--json", o->json, "write the rows to this file");
  app.callback([o, &program] { bench_scale(*o, program.argc, program.argv); });
}

}  // namespace kvilt
