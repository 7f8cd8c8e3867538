// apps/eval.cc: kvilt eval: is it right, and how near is approximate reuse to the full pass? --parity compares with
// logits from elsewhere (eval_parity.cc); --cases and --suite compare policies with `full` on questions (src/eval/,
// docs/eval.md).
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>

#include "apps/case_sources.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "eval/aggregate.h"
#include "eval/case_digest.h"
#include "eval/journal.h"
#include "eval/report.h"
#include "eval/runner.h"
#include "kvilt/version.h"

namespace kvilt {
namespace {

constexpr size_t kMostMapBytes = size_t{1} << 30;

struct EvalOptions {
  EngineOptions engine;
  CaseOptions from;
  std::string parity, json, markdown, html, journal, warm = "system", warm_as = "prefix", season_with = "related";
  std::string policies = "full,naive,sparsex";
  std::vector<std::string> pairs;
  int answer_tokens = 24, prompt_rows = 0, before = 0, season = 0;
  bool recovered_mass = false, settle = false, turns = false;
  double max_minutes = 0;
  uint64_t seed = 1;
  bool fresh = false;
};

std::vector<PolicySpec> policies_of(const std::string& text) {
  std::vector<PolicySpec> out{value_or_fail(parse_policy("full"))};
  for (const std::string& label : split_commas(text)) {
    if (label != "full") out.push_back(value_or_fail(parse_policy(label)));
  }
  return out;
}

// "a/b"; without --pair every policy is compared with naive where that runs.
std::vector<std::pair<std::string, std::string>> pairs_of(const EvalOptions& o,
                                                          const std::vector<PolicySpec>& policies) {
  const auto known = [&](const std::string& label) {
    return std::ranges::any_of(policies, [&](const PolicySpec& p) { return p.label == label; });
  };
  std::vector<std::pair<std::string, std::string>> out;
  for (const std::string& pair : o.pairs) {
    const size_t slash = pair.find('/');
    const std::string a = pair.substr(0, slash), b = slash == std::string::npos ? "" : pair.substr(slash + 1);
    if (!known(a) || !known(b)) fail(fmt::format("--pair: '{}' is not A/B with A and B from --policies", pair));
    out.emplace_back(a, b);
  }
  if (!out.empty() || !known("naive")) return out;
  for (const PolicySpec& policy : policies) {
    if (policy.label != "full" && policy.label != "naive") out.emplace_back(policy.label, "naive");
  }
  return out;
}

// What the run's ratios are to.
const char* ratios_to(const EvalOptions& o) { return o.turns ? "prefix" : "full"; }

void print_rows(const nlohmann::ordered_json& rows, const std::string& base) {
  std::printf("%-14s %-28s %4s %18s %18s %18s %6s %6s %9s %7s %6s %7s\n", "suite", "policy", "n", "score", "KL first",
              "KL answer", "top1", "same", "TTFT s", ("/" + base).c_str(), "FLOPs", "recomp.");
  const auto number = [](const nlohmann::ordered_json& value) {
    return value.is_null() ? std::string("-") : fmt::format("{:.3f}", value.get<double>());
  };
  for (const auto& row : rows) {
    std::printf("%-14s %-28s %4d %18s %18s %18s %6s %6s %9.3f %7.3f %6.3f %7.3f\n",
                row["suite"].get<std::string>().c_str(), row["label"].get<std::string>().c_str(), row["n"].get<int>(),
                with_interval(row, "score").c_str(), with_interval(row, "kl_first").c_str(),
                with_interval(row, "kl_answer").c_str(), number(row["top1"]).c_str(),
                number(row["same_answer"]).c_str(), row["ttft_s"].get<double>(), row["ttft_ratio"].get<double>(),
                row["flops_ratio"].get<double>(), row["recomputed_ratio"].get<double>());
  }
}

void print_pairs(const nlohmann::ordered_json& pairs) {
  if (pairs.empty()) return;
  std::printf("\npaired geometric mean of (KL + 0.001) / (KL of base + 0.001)\n");
  for (const auto& row : pairs) {
    std::printf("%-14s %-28s / %-20s n %4d  %.3f [%.3f,%.3f]\n", row["suite"].get<std::string>().c_str(),
                row["a"].get<std::string>().c_str(), row["b"].get<std::string>().c_str(), row["n"].get<int>(),
                row["kl_ratio"].get<double>(), row["kl_ratio_ci"][0].get<double>(),
                row["kl_ratio_ci"][1].get<double>());
  }
}

// "1:02:03"
std::string clock_text(double seconds) {
  const auto s = static_cast<long>(seconds);
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

// By name, the digests of files that are given as FILE or NAME=FILE.
nlohmann::ordered_json map_digests(const std::vector<std::string>& given) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const std::string& one : given) {
    const size_t eq = one.find('=');
    const std::string name = eq == std::string::npos ? "" : one.substr(0, eq);
    out[name] =
        digest_of({value_or_fail(read_file(eq == std::string::npos ? one : one.substr(eq + 1), kMostMapBytes))});
  }
  return out;
}

// What a journal's results depend on; one that was written with other settings is refused.
JournalSetup journal_setup(const EvalOptions& o, const ModelInfo& info) {
  const EngineOptions& engine = o.engine;
  JournalSetup out;
  out.values = {{"model", info.fingerprint},        {"warm", o.warm}, {"prompt", o.from.form}, {"lead", o.from.lead},
                {"answer_tokens", o.answer_tokens}, {"seed", o.seed}};
  // The third: what held in journals that lack it, since it was written only where it was not this.
  const auto was = [&](const char* key, const nlohmann::ordered_json& value, const nlohmann::ordered_json& absent) {
    out.values[key] = value;
    out.absent[key] = absent;
  };
  was("activations", activations_name(engine.activations), activations_name(ActivationType::kAuto));
  was("kv_type", info.kv_type, "f32");
  was("prompt_rows", o.prompt_rows, 0);
  was("recovered_mass", o.recovered_mass, false);
  was("before", o.before, 0);
  was("settle", o.settle, false);
  was("turns", o.turns, false);
  was("ratios_to", ratios_to(o), "full");  // with --turns to prefix, since 28 November 2026; not all of these say so
  was("warm_as", o.warm_as, "prefix");
  was("season", o.season, 0);
  was("season_states", o.season > 0 && engine.season_states, false);
  was("season_with", o.season > 0 ? o.season_with : "related", "related");
  // Journals of before 27 November 2026 never have these, and do not say what held.
  const auto unsaid = [&](const char* key, const nlohmann::ordered_json& value) { was(key, value, nullptr); };
  unsaid("version", kVersion);
  unsaid("backend", info.backend);
  unsaid("chat_template", digest_of({info.chat_template}));
  unsaid("head_maps", map_digests(engine.head_maps));
  unsaid("sparse_maps", map_digests(engine.sparse_maps));
  unsaid("layer_maps", map_digests(engine.layer_maps));
  unsaid("quality", quality_name(engine.quality));
  unsaid("reuse_from", reuse_from_name(engine.reuse_from));
  unsaid("discover", discover_name(engine.discover));
  unsaid("trust", trust_name(engine.trust));
  unsaid("placement", placement_name(engine.placement));
  unsaid("min_segment", engine.min_segment);
  unsaid("min_near", engine.min_near);
  return out;
}

Journal open_journal(const EvalOptions& o, const ModelInfo& info) {
  const std::string path = o.journal.empty() && !o.json.empty() ? o.json + ".journal" : o.journal;
  if (o.fresh && !path.empty()) ::unlink(path.c_str());
  return value_or_fail(Journal::open(path, journal_setup(o, info)));
}

struct EvalRun {
  const std::vector<CaseSource>& sources;
  const std::vector<PolicySpec>& policies;
  RunOptions options;
};

// Runs what the journal does not hold, with a bar, or a line every half minute where there is no terminal. Returns the number
// of cases that were left out.
int run_into(Journal& journal, Engine& engine, const EvalRun& run) {
  RunEvents events;
  events.done_before = [&](const auto& source, const auto& policy) { return journal.has(source, policy); };
  events.on_result = [&](const CaseResult& result) { return journal.add(result); };
  events.on_quilt = [&](const Quilt& quilt) { return journal.add(quilt); };
  Progress progress("eval");
  const bool lines = ::isatty(STDERR_FILENO) != 1;
  auto said = std::chrono::steady_clock::now();
  events.on_progress = [&](double share, double seconds_left, const std::string& note) {
    const std::string text = (seconds_left < 0 ? "" : clock_text(seconds_left) + " left  ") + note;
    progress.at(share, text);
    if (!lines || std::chrono::steady_clock::now() - said < std::chrono::seconds(30)) return;
    said = std::chrono::steady_clock::now();
    std::fprintf(stderr, "%3.0f %%  %s\n", 100 * share, text.c_str());
  };
  return value_or_fail(run_cases(engine, run.sources, run.policies, run.options, events));
}

void eval_cases(const EvalOptions& o, int argc, char** argv) {
  const auto policies = policies_of(o.policies);
  const auto pairs = pairs_of(o, policies);
  const RunOptions run{value_or_fail(parse_warm(o.warm)),
                       value_or_fail(parse_policy(o.warm_as)).choice,
                       o.seed,
                       o.answer_tokens,
                       o.prompt_rows,
                       o.recovered_mass,
                       60 * o.max_minutes,
                       o.before,
                       o.settle,
                       o.turns,
                       {o.season, value_or_fail(parse_season_with(o.season_with))}};
  if (o.answer_tokens < 1) fail("--answer-tokens must be at least 1");
  if (o.turns && (o.before > 0 || o.season > 0 || o.warm != "system" || o.warm_as != "prefix"))
    fail(
        "--turns: the cache holds what each policy leaves of a dialogue; leave --before, --season, --warm and "
        "--warm-as out");
  Report report(argc, argv);
  auto engine = open_or_exit(o.engine);
  auto sources = sources_of(*engine, o.from);
  if (const auto made = digest_cases(sources); !made.ok()) fail(made.error());
  report.set_model(engine->info());
  for (const PolicySpec& policy : policies) {
    if (const auto good = engine->check_policy(policy.choice); !good.ok()) fail(good.error());
  }
  if (o.recovered_mass) {
    if (const auto good = check_held_mass(*engine, policies); !good.ok()) fail(good.error());
  }
  Journal journal = open_journal(o, engine->info());
  const int left = run_into(journal, *engine, {sources, policies, run});
  // Only what this run asked for: a journal may hold more policies and cases.
  std::map<std::pair<std::string, std::string>, const CaseSource*> asked;
  for (const CaseSource& source : sources) asked[{source.suite, source.id}] = &source;
  const auto is_asked = [&](const auto& of) {
    const auto source = asked.find({of.suite, of.id});
    return source != asked.end() && same_case(of.digest, *source->second);
  };
  std::vector<CaseResult> results;
  std::ranges::copy_if(journal.results(), std::back_inserter(results), is_asked);
  for (auto& row : aggregate_rows(results, policies)) report.add(std::move(row));
  const auto ratios = pair_rows(results, pairs);
  report.set("ratios_to", ratios_to(o));
  report.set("pairs", ratios);
  print_rows(report.rows(), ratios_to(o));
  print_pairs(ratios);
  if (left > 0)
    std::fprintf(stderr, "%d cases were left out: --max-minutes %g are over; run it again to go on\n", left,
                 o.max_minutes);
  report.write(o.json);
  write_text(o.markdown, markdown_report(report.whole()));
  std::vector<Quilt> quilts;
  std::ranges::copy_if(journal.quilts(), std::back_inserter(quilts), is_asked);
  write_text(o.html, html_report(report.whole(), quilts));
}

}  // namespace

void add_eval(Program& program) {
  auto app = program.app.add_subcommand(
      "eval", "how near is reuse to the full pass? questions under several policies, or logits from elsewhere");
  auto o = std::make_shared<EvalOptions>();
  add_engine_options(app, o->engine, true);
  auto parity =
      app.add_option("--parity", o->parity,
                     "a parity file: this build against reference logits (docs/formats/json.md); --kv-type auto is "
                     "f32 then");
  const auto [cases, suites] = add_case_options(app, o->from);
  parity.excludes(cases).excludes(suites);
  app.add_option("--policies", o->policies,
                 "comma-separated; parameters as sparsex:l_star=0:k=0.1; full is always measured")
      .show_default();
  app.add_option("--pair", o->pairs,
                 "A/B: paired ratio of distances between two of the policies; may be given more than once");
  app.add_option(
         "--warm", o->warm,
         "what comes before a piece when it is computed first: alone (nothing), system (the fixed prefix), context "
         "(the other pieces); prompt: the whole prompt is cached, and an exact policy computes little but the answer")
      .show_default();
  app.add_option("--warm-as", o->warm_as,
                 "the policy that computes them then: crossquery:regime=b keeps its states of what it computes itself")
      .show_default();
  app.add_option("--answer-tokens", o->answer_tokens, "longest answer").show_default();
  app.add_option("--prompt-rows", o->prompt_rows, "compare at this many of the prompt's last positions too (kl_prompt)")
      .range(0, 1024);
  app.add_flag(
      "--recovered-mass", o->recovered_mass,
      "measure the share of full attention that rows saw (held_mass, decode_held_mass); times are longer then");
  app.add_flag("--settle", o->settle,
               "ask each policy once before it is measured: what it stores about documents (samkv) is there then");
  app.add_flag(
      "--turns", o->turns,
      "of dialogues: ask each policy the turns before the last one by one, so that it goes on from its own KV");
  app.add_option("--seed", o->seed, "of the order in which policies run, and of --warm context").show_default();
  app.add_option(
         "--before", o->before,
         "for policies with reuse_from=last: this many requests over the same pieces come first, in other orders")
      .show_default();
  app.add_option("--season", o->season,
                 "for policies with reuse_from=seasoned: pieces are the mean over this many contexts")
      .range(0, 16)
      .show_default();
  app.add_option("--season-with", o->season_with,
                 "what stands before a piece then: related (the case's other pieces), random (other cases' pieces)")
      .show_default();
  app.add_flag("--season-states", o->engine.season_states, "these means keep a hidden state a token, as serve's do");
  app.add_option("--max-minutes", o->max_minutes, "start no case after that; the same command goes on later");
  app.add_option("--journal", o->journal,
                 "results of single cases, written at once; by default FILE.journal of --json FILE");
  app.add_flag("--fresh", o->fresh, "begin the journal anew");
  app.add_option("--json", o->json, "write the rows to this file");
  app.add_option("--markdown", o->markdown, "write tables to this file");
  app.add_option("--html", o->html, "write a page with plots, tables and the quilt of the first case to this file");
  app.callback([o, &program] {
    if (!o->parity.empty()) {
      if (o->engine.kv_type == KvType::kAuto) o->engine.kv_type = KvType::kF32;  // it compares with exact arithmetic
      return eval_parity(o->engine, o->parity, o->json, program);
    }
    if (o->from.empty()) fail("give --cases FILE, --suite NAME or --parity FILE; see kvilt eval --help");
    eval_cases(*o, program.argc, program.argv);
  });
}

}  // namespace kvilt
