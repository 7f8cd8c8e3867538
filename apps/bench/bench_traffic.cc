// apps/bench/bench_traffic.cc: kvilt bench traffic: a day's requests as a server meets them, one workload after the
// other, and what each figure should be.
//   chat         a conversation over known passages, under the default and under `exact` (traffic_chat.cc)
//   burst, mixed, interrupted, sampling: requests that meet, or come back (traffic_load.cc)
//   memory       what many requests leave in the pool (traffic_memory.cc)
// Method: texts are synthetic and the same for every run with the same --seed. Figures that end in _s are seconds of
//         this machine; ratios compare lanes of the same run. --quick has smaller sizes: for a look, not for a table.
#include <algorithm>
#include <cstdio>

#include "apps/bench/traffic.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "base/error.h"

namespace kvilt {
namespace {

struct TrafficWorkload {
  const char* name;
  void (*run)(TrafficBench&);
};
constexpr TrafficWorkload kTraffic[] = {{"chat", traffic_chat},
                                        {"burst", traffic_burst},
                                        {"mixed", traffic_mixed},
                                        {"memory", traffic_memory},
                                        {"interrupted", traffic_interrupted},
                                        {"sampling", traffic_sampling}};

void bench_traffic(const TrafficOptions& o, int argc, char** argv) {
  const std::vector<std::string> names = split_commas(o.only);
  if (names.empty()) fail("--only: give at least one workload");
  std::vector<const TrafficWorkload*> chosen;
  for (const std::string& name : names) {
    const auto it = std::ranges::find_if(kTraffic, [&](const TrafficWorkload& w) { return name == w.name; });
    if (it == std::end(kTraffic))
      fail(fmt::format("--only: '{}' is not chat, burst, mixed, memory, interrupted or sampling", name));
    chosen.push_back(it);
  }
  Report report(argc, argv);
  TrafficBench bench(o, report);
  std::printf("%-12s %-26s %12s  %s\n", "workload", "figure", "value", "should be");
  for (const TrafficWorkload* workload : chosen) workload->run(bench);
  bench.finish();
  report.write(o.json);
}

}  // namespace

void add_bench_traffic(Program& program, Command bench) {
  auto app = bench.add_subcommand(
      "traffic", "a day's requests: conversations, bursts, long prompts, memory, retries, sampling, as ratios");
  auto o = std::make_shared<TrafficOptions>();
  add_engine_options(app, o->engine, true);
  app.add_option("--only", o->only, "comma-separated: chat, burst, mixed, memory, interrupted, sampling")
      .show_default();
  app.add_flag("--quick", o->quick, "smaller sizes: a minute or two with a 0.5 B model on two cores");
  app.add_flag("--unmarked", o->unmarked, "send no marks: documents must be discovered");
  app.add_option("--rounds", o->rounds, "of chat and sampling, alternating (0: 3 and 5; with --quick 1 and 3)")
      .range(0, 1000);
  app.add_option("--requests", o->requests, "of memory (0: 500; with --quick 60)").range(0, 1000000);
  app.add_option("--long", o->long_tokens, "of a long prompt, in tokens (0: 16384; with --quick 4096)")
      .range(0, 1 << 20);
  app.add_option("--give-up", o->give_up,
                 "seconds after which a client cancels (0: 5; with --quick a fifth of what its prompt takes)")
      .range(0.0, 3600.0);
  app.add_option("--seed", o->seed, "of texts and orders").show_default();
  app.add_option("--json", o->json, "write the rows to this file");
  app.callback([o, &program] { bench_traffic(*o, program.argc, program.argv); });
}

}  // namespace kvilt
