// apps/bench/bench_workloads.cc: kvilt bench workloads: whole streams of requests under each policy, everything
// published, as a server sees them. The shapes are those of public workloads that share no prefix
// (docs/formats/json.md); the generator is ours.
//   permutator  one system prompt and N contexts, asked in P different orders (LMCache's long-doc-permutator)
//   suffix      N prefixes before one shared suffix, two passes in different order; a breaker of a few new tokens
//               separates them, so that the suffix is never part of an exact prefix (LMCache's prefix-suffix-tuner)
//   mooncake    the block pattern of a trace (timestamp, input_length, hash_ids): equal ids are equal text; lengths are
//               scaled down
//   --suite agents  the eight streams of agent_streams.h, by default under prefix, the default, exact and balanced
// Method: for each policy the cache is emptied, then the requests run one after another; the first token ends each.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <random>

#include "apps/bench/agent_streams.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "base/error.h"
#include "eval/runner.h"

namespace kvilt {
namespace {

constexpr const char* kWorkloads = "permutator,suffix";
constexpr const char* kPolicies = "full,prefix,naive,sparsex,mend";
constexpr const char* kAgentPolicies = "prefix,auto:quality=auto,auto:quality=exact,auto:quality=balanced";

struct WorkloadOptions {
  EngineOptions engine;
  std::string suite, workloads, trace, policies, prompts, json;
  double scale = 0.1;
  int contexts = 5, context_tokens = 400, permutations = 12, prefixes = 6, requests = 40, block_tokens = 64;
  int most_tokens = 4096;
  uint64_t seed = 42;
};

Workload permutator(const WorkloadOptions& o, const Texts& texts) {
  Workload out{"permutator", {}};
  std::vector<uint64_t> order(static_cast<size_t>(o.contexts));
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937_64 rng(o.seed);
  for (int p = 0; p < o.permutations; ++p) {
    Prompt prompt;
    append(prompt, texts.text(1 << 20, 64), false);
    for (const uint64_t context : order) append(prompt, texts.text(context, o.context_tokens), true);
    append(prompt, texts.text((2 << 20) + static_cast<uint64_t>(p), 24), false);
    out.prompts.push_back(std::move(prompt));
    std::shuffle(order.begin(), order.end(), rng);
  }
  return out;
}

Workload suffix(const WorkloadOptions& o, const Texts& texts) {
  Workload out{"suffix", {}};
  const int whole = o.contexts * o.context_tokens, prefix = whole * 8 / 10;
  uint64_t breaker = 5 << 20;
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = 0; i < o.prefixes; ++i) {
      const int which = pass == 0 ? i : o.prefixes - 1 - i;
      Prompt prompt;
      append(prompt, texts.text((3 << 20) + static_cast<uint64_t>(which), prefix), false);
      append(prompt, texts.text(breaker++, 8), false);
      append(prompt, texts.text(4 << 20, whole - prefix), false);
      append(prompt, texts.text(breaker++, 16), false);
      out.prompts.push_back(std::move(prompt));
    }
  }
  return out;
}

Workload mooncake(const WorkloadOptions& o, const Texts& texts) {
  Workload out{"mooncake", {}};
  std::ifstream file(o.trace);
  if (!file) fail(o.trace + ": cannot read; --trace names a Mooncake trace (JSON lines with hash_ids)");
  int number = 0;
  for (std::string line; static_cast<int>(out.prompts.size()) < o.requests && std::getline(file, line);) {
    ++number;
    const auto row = nlohmann::json::parse(line, nullptr, false);
    if (!row.is_object() || !row.contains("hash_ids") || !row["hash_ids"].is_array())
      fail(fmt::format("{}:{}: not an object with hash_ids", o.trace, number));
    Prompt prompt;
    for (const auto& id : row["hash_ids"]) {
      if (!id.is_number_unsigned()) fail(fmt::format("{}:{}: hash_ids must be whole numbers", o.trace, number));
      if (static_cast<int>(prompt.ids.size()) + o.block_tokens > o.most_tokens) break;
      append(prompt, texts.text((uint64_t{6} << 20) + id.get<uint64_t>(), o.block_tokens), false);
    }
    append(prompt, texts.text((uint64_t{7} << 40) + static_cast<uint64_t>(number), 16), false);
    out.prompts.push_back(std::move(prompt));
  }
  if (out.prompts.empty()) fail(o.trace + ": no requests");
  return out;
}

double percentile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  const auto i = static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5);
  return values[i];
}

void run(Engine& engine, const Workload& workload, const std::string& label, const PolicyChoice& policy,
         Report& report) {
  engine.clear_cache();
  const int64_t evicted_before = engine.stats().evicted_segments;
  std::vector<double> ttft;
  PromptUsage sum;
  Progress progress(workload.name + " " + label);
  for (const Prompt& prompt : workload.prompts) {
    progress.at(static_cast<double>(ttft.size()) / static_cast<double>(workload.prompts.size()));
    Request request;
    request.prompt = prompt;
    request.policy = policy;
    request.sampling.max_tokens = 1;
    request.sampling.ignore_eos = true;
    request.sampling.temperature = 0;
    const PromptUsage u = run_request(engine, std::move(request)).completion.usage;
    ttft.push_back(u.ttft_s);
    sum.prompt += u.prompt;
    sum.prefix += u.prefix;
    sum.reused += u.reused;
    sum.recomputed += u.recomputed;
    sum.fresh += u.fresh;
    sum.flops += u.flops;
  }
  const auto n = static_cast<double>(ttft.size());
  double total = 0;
  for (const double t : ttft) total += t;
  report.add({{"workload", workload.name},
              {"policy", label},
              {"requests", ttft.size()},
              {"prompt_tokens", sum.prompt},
              {"prefix_tokens", sum.prefix},
              {"reused_tokens", sum.reused},
              {"recomputed_tokens", sum.recomputed},
              {"fresh_tokens", sum.fresh},
              {"flops", sum.flops},
              {"ttft_s", ttft},
              {"ttft_mean_s", total / n},
              {"ttft_p50_s", percentile(ttft, 0.5)},
              {"ttft_p90_s", percentile(ttft, 0.9)},
              {"ttft_p99_s", percentile(ttft, 0.99)},
              {"evicted_runs", engine.stats().evicted_segments - evicted_before}});
  std::printf("%-11s %-18s %4.0f %8d %8d %8d %8d %8d %8.3f %8.3f %8.3f %8.3f\n", workload.name.c_str(), label.c_str(),
              n, sum.prompt, sum.prefix, sum.reused, sum.recomputed, sum.fresh, total / n, percentile(ttft, 0.5),
              percentile(ttft, 0.9), percentile(ttft, 0.99));
  std::fflush(stdout);
}

std::vector<Workload> chosen_streams(const WorkloadOptions& o, const Texts& texts) {
  std::vector<Workload> all = agent_streams(texts, o.scale, o.seed), out;
  for (const std::string& name : split_commas(o.workloads)) {
    const auto at = std::ranges::find(all, name, &Workload::name);
    if (at == all.end()) fail(fmt::format("--workloads: '{}' is not a stream of --suite agents", name));
    out.push_back(*at);
  }
  return out.empty() ? all : out;
}

std::vector<Workload> chosen_workloads(const WorkloadOptions& o, const Texts& texts) {
  if (!o.suite.empty()) return chosen_streams(o, texts);
  std::vector<Workload> out;
  std::vector<std::string> names = split_commas(o.workloads.empty() ? kWorkloads : o.workloads);
  if (!o.trace.empty() && std::ranges::find(names, "mooncake") == names.end()) names.push_back("mooncake");
  for (const std::string& name : names) {
    if (name == "permutator") {
      out.push_back(permutator(o, texts));
    } else if (name == "suffix") {
      out.push_back(suffix(o, texts));
    } else if (name == "mooncake") {
      out.push_back(mooncake(o, texts));
    } else {
      fail(fmt::format("--workloads: '{}' is not permutator, suffix or mooncake", name));
    }
  }
  return out;
}

// A line for each prompt, for other servers (bench/peers/agents.py).
void write_prompts(const std::string& path, const std::vector<Workload>& workloads) {
  std::ofstream file(path);
  for (const Workload& workload : workloads) {
    for (const Prompt& prompt : workload.prompts)
      file << nlohmann::json{{"workload", workload.name}, {"ids", prompt.ids}}.dump() << "\n";
  }
  if (!file.flush()) fail("--prompts: " + path + " cannot be written");
}

void bench_workloads(const WorkloadOptions& o, int argc, char** argv) {
  for (const int n : {o.contexts, o.context_tokens, o.permutations, o.prefixes, o.requests, o.block_tokens}) {
    if (n < 1) fail("sizes and counts must be at least 1");
  }
  if (!o.suite.empty() && o.suite != "agents") fail("--suite: '" + o.suite + "' is not agents");
  Report report(argc, argv);
  auto engine = open_or_exit(o.engine);
  report.set_model(engine->info());
  const char* usual = o.suite.empty() ? kPolicies : kAgentPolicies;
  const std::vector<PolicySpec> policies = checked_policies(*engine, o.policies.empty() ? usual : o.policies);
  const std::vector<Workload> workloads = chosen_workloads(o, Texts(engine->info().vocab, o.seed));
  if (!o.prompts.empty()) return write_prompts(o.prompts, workloads);
  std::printf("%-11s %-18s %4s %8s %8s %8s %8s %8s %8s %8s %8s %8s\n", "workload", "policy", "n", "prompt", "prefix",
              "reused", "recomp.", "fresh", "TTFT s", "p50", "p90", "p99");
  for (const Workload& workload : workloads) {
    for (const auto& [label, policy] : policies) run(*engine, workload, label, policy, report);
  }
  report.write(o.json);
}

}  // namespace

void add_bench_workloads(Program& program, Command bench) {
  auto app = bench.add_subcommand("workloads", "streams of requests, everything cached as they come: TTFT per policy");
  auto o = std::make_shared<WorkloadOptions>();
  add_engine_options(app, o->engine, true);
  app.add_option("--suite", o->suite, "agents: eight streams of agents instead of the workloads below");
  app.add_option("--scale", o->scale, "of the lengths that were reported of these streams")
      .range(0.01, 1.0)
      .show_default();
  app.add_option("--workloads", o->workloads,
                 std::string("comma-separated: permutator, suffix, mooncake (default: ") + kWorkloads +
                     "), or streams of the suite (default: all)");
  app.add_option("--prompts", o->prompts, "write the prompts to this file as lines of JSON, and measure nothing");
  app.add_option("--trace", o->trace, "a Mooncake trace; adds the workload mooncake");
  app.add_option("--policies", o->policies,
                 std::string("comma-separated; parameters as sparsex:l_star=0:k=0.1 (default: ") + kPolicies +
                     "; of the suite " + kAgentPolicies + ")");
  app.add_option("--contexts", o->contexts, "contexts of a permutator request").show_default();
  app.add_option("--context-tokens", o->context_tokens, "their length").show_default();
  app.add_option("--permutations", o->permutations, "permutator requests").show_default();
  app.add_option("--prefixes", o->prefixes, "prefixes of suffix (each asked twice)").show_default();
  app.add_option("--requests", o->requests, "requests taken from the trace").show_default();
  app.add_option("--block-tokens", o->block_tokens, "tokens of a trace's block (512 in the trace)").show_default();
  app.add_option("--most-tokens", o->most_tokens, "a trace's prompts are cut here").show_default();
  app.add_option("--seed", o->seed, "of texts and orders").show_default();
  app.add_option("--json", o->json, "write the rows to this file");
  app.callback([o, &program] { bench_workloads(*o, program.argc, program.argv); });
}

}  // namespace kvilt
