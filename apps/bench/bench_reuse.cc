// apps/bench/bench_reuse.cc: kvilt bench reuse: known documents in a new order, under each policy, and a full prefill.
// Method: the cache is warmed with the documents in one order; then the policies alternate (A B C A B C ...) and ask
//         with another. Nothing is published, so that each finds the warmed documents only. Median and half the
//         quartile distance are reported.
#include <algorithm>
#include <cstdio>

#include "apps/bench/rag_prompt.h"
#include "apps/bench/rates.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "base/divergence.h"
#include "base/error.h"
#include "eval/case_file.h"
#include "eval/runner.h"

namespace kvilt {
namespace {

struct ReuseOptions {
  EngineOptions engine;
  std::string cases, synthetic = "8x256", order = "shuffle", policies = "full,prefix,naive,sparsex", json;
  int rounds = 5, limit = 0, decode = 0;
  uint64_t seed = 7;
  bool unmarked = false, cold = false;
};

struct Measured {
  std::string label;
  PolicyChoice policy;
  std::vector<double> ttft, decode;  // seconds; tokens a second
  PromptUsage usage;
  std::vector<float> logits;
};

std::vector<RagPrompt> prompts(const Engine& engine, const ReuseOptions& o) {
  std::vector<RagPrompt> out;
  if (!o.cases.empty()) {
    CaseFileOptions options;
    options.limit = std::max(0, o.limit);
    for (const EvalCase& from : value_or_fail(read_case_file(o.cases, options))) {
      out.push_back(value_or_fail(rag_prompt(engine, from)));
    }
    return out;
  }
  int count = 0, size = 0;
  if (std::sscanf(o.synthetic.c_str(), "%dx%d", &count, &size) != 2 || count < 1 || size < 1 || count > 100000 ||
      size > 1000000) {
    fail(fmt::format("--synthetic: '{}' is not DOCUMENTSxTOKENS, as 8x256", o.synthetic));
  }
  out.push_back(value_or_fail(synthetic_prompt(engine, count, size, o.seed)));
  return out;
}

void measure(Engine& engine, const RagPrompt& prompt, const ReuseOptions& o, std::vector<Measured>& all) {
  const int count = static_cast<int>(prompt.pieces.size());
  Request warm;  // the documents after the prompt's head; the question is new when it is asked
  RagPrompt documents = prompt;
  documents.tail.clear();
  warm.prompt = documents.in_order(value_or_fail(piece_order("same", count, o.seed)), !o.unmarked);
  warm.policy.name = "full";
  warm.sampling.max_tokens = 0;
  engine.clear_cache();
  if (!o.cold) run_request(engine, std::move(warm));
  const Prompt asked = prompt.in_order(value_or_fail(piece_order(o.order, count, o.seed)), !o.unmarked);
  for (int round = 0; round < o.rounds; ++round) {
    for (Measured& m : all) {
      Request request;
      request.prompt = asked;
      request.policy = m.policy;
      request.sampling.max_tokens = 1 + o.decode;
      request.sampling.ignore_eos = true;
      request.sampling.temperature = 0;
      request.publish = false;
      request.draft = 0;  // steps of one token are timed
      request.evaluation.first_logits = true;
      Answered out = run_request(engine, std::move(request));
      m.ttft.push_back(out.completion.usage.ttft_s);
      m.usage = out.completion.usage;
      if (o.decode > 0) m.decode.push_back(o.decode / (out.completion.total_s - m.usage.ttft_s));
      m.logits = std::move(out.completion.logits.first);
    }
  }
}

// One case: a row and a line for each policy, compared with `full`.
void add_rows(const std::string& id, const std::vector<Measured>& all, const ReuseOptions& o, const Rates& rates,
              Report& report) {
  const auto full = std::ranges::find_if(all, [](const Measured& m) { return m.label == "full"; });
  const double full_ttft = median(full->ttft);
  const Reference reference(full->logits);
  for (const Measured& m : all) {
    const PromptUsage& u = m.usage;
    const double ttft = median(m.ttft), bound = rates.bound_s(u), kl = reference.kl(m.logits);
    const bool top1 = reference.top() == most_likely(m.logits);
    report.add({{"policy", m.label},
                {"order", o.order},
                {"case", id},
                {"prompt_tokens", u.prompt},
                {"prefix_tokens", u.prefix},
                {"reused_tokens", u.reused},
                {"recomputed_tokens", u.recomputed},
                {"fresh_tokens", u.fresh},
                {"ttft_s", ttft},
                {"ttft_spread_s", spread(m.ttft)},
                {"flops", u.flops},
                {"bytes", u.bytes},
                {"bound_s", bound},
                {"kl_first", kl},
                {"top1_same", top1},
                {"linear_flops", u.linear_flops},
                {"attention_flops", u.attention_flops},
                {"steps", u.steps},
                {"rounds", o.rounds},
                {"placement", placement_name(o.engine.placement)},
                {"decode_tok_s", median(m.decode)}});
    std::printf("%-28s %-12s %7d %7d %7d %7d %7d %9.4f %8.4f %7.3f %7.2f %9.5f %5s\n", m.label.c_str(),
                id.substr(0, 12).c_str(), u.prompt, u.prefix, u.reused, u.recomputed, u.fresh, ttft, spread(m.ttft),
                ttft / full_ttft, ttft / bound, kl, top1 ? "same" : "other");
    if (o.decode > 0) std::printf("%28s decode %.1f tokens/s\n", "", median(m.decode));
    std::fflush(stdout);
  }
}

void bench_reuse(const ReuseOptions& o, int argc, char** argv) {
  if (o.rounds < 1) fail("--rounds must be at least 1");
  Report report(argc, argv);
  const Rates rates = measure_rates(o.engine);
  auto engine = open_or_exit(o.engine);
  report.set_model(engine->info());
  const std::vector<PolicySpec> policies = checked_policies(*engine, o.policies, "full");
  const auto cases = prompts(*engine, o);
  std::printf(
      "linear layers %.0f GFLOP/s, attention %.0f GFLOP/s, memory %.1f GB/s (measured now; bound_s is made of them)\n",
      rates.matmul_flops / 1e9, rates.attention_flops / 1e9, rates.read_bytes / 1e9);
  std::printf("%-28s %-12s %7s %7s %7s %7s %7s %9s %8s %7s %7s %9s %5s\n", "policy", "case", "prompt", "prefix",
              "reused", "recomp.", "fresh", "TTFT s", "+-", "/full", "/bound", "KL first", "top1");
  Progress progress("measuring");
  for (size_t i = 0; i < cases.size(); ++i) {
    progress.at(static_cast<double>(i) / static_cast<double>(cases.size()));
    std::vector<Measured> all;
    for (const PolicySpec& policy : policies) all.push_back({policy.label, policy.choice, {}, {}, {}, {}});
    measure(*engine, cases[i], o, all);
    add_rows(cases[i].id, all, o, rates, report);
  }
  report.write(o.json);
}

}  // namespace

void add_bench_reuse(Program& program, Command bench) {
  auto app = bench.add_subcommand(
      "reuse", "known documents in a new order: time to first token and tokens by source, per policy");
  auto o = std::make_shared<ReuseOptions>();
  add_engine_options(app, o->engine, true);
  app.add_option("--cases", o->cases, "RAG cases, JSON lines (docs/formats/json.md)");
  app.add_option("--synthetic", o->synthetic, "or made-up documents: DOCUMENTSxTOKENS").show_default();
  app.add_option("--order", o->order,
                 "of the documents when asked: same, reverse, shuffle, insert, drop, or one like 3-1-2")
      .show_default();
  app.add_option("--policies", o->policies, "comma-separated; parameters as sparsex:l_star=0:k=0.1").show_default();
  app.add_option("--rounds", o->rounds, "measurements per policy, alternating").show_default();
  app.add_option("--decode", o->decode, "also decode this many tokens after the first, over the same mix of pieces")
      .show_default();
  app.add_option("--limit", o->limit, "cases at most (0: all)");
  app.add_option("--seed", o->seed, "of shuffles and synthetic documents").show_default();
  app.add_flag("--unmarked", o->unmarked, "send no marks: the pieces must be discovered");
  app.add_flag("--cold", o->cold, "warm nothing: what policies save that need no known documents (redknot)");
  app.add_option("--json", o->json, "write the rows to this file");
  app.callback([o, &program] { bench_reuse(*o, program.argc, program.argv); });
}

}  // namespace kvilt
