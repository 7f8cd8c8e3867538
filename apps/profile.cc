// apps/profile.cc: kvilt profile heads: which KV heads of a model may be local? From the user's own questions to a head
// map, with the controls that say whether it is worth anything.
// Method: some cases are profiled (kvilt/head_profile.h), the scores averaged, and the highest `share` of the heads
//         made global (model/head_choice.h). The other cases are asked in full and under the map, random maps of the
//         same share, 'first layers global', 'last layers global' and 'all local' (eval/runner.h); if the map is no
//         better than random ones, the report says so.
// Source: docs/design/heads.md#profiling.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "apps/case_sources.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "apps/head_report.h"
#include "apps/report.h"
#include "base/error.h"
#include "base/random.h"
#include "eval/aggregate.h"
#include "eval/prompt.h"
#include "eval/report.h"
#include "eval/runner.h"
#include "eval/suite.h"
#include "kvilt/head_profile.h"
#include "model/head_choice.h"

namespace kvilt {
namespace {

constexpr int kRandomMaps = 3;
constexpr const char* kMapName = "profiled";

struct ProfileOptions {
  EngineOptions engine;
  CaseOptions from;
  HeadProfileOptions heads;
  std::string by = "ablation", out, markdown, html, json, shares;
  bool map_only = false;
  HeadChoice choice;
  int profiled = 0, most_tokens = 4096, rows = 24;
};

// Two texts that have nothing to do with a question: what comes before it should not matter to a local head.
constexpr const char* kPrefixes[] = {
    "The harbour office keeps a ledger of every ship: its name, where it came from, what it carried and how long it "
    "lay at "
    "the quay. Clerks copy the pages twice a year, and the older volumes are kept in a dry room above the stairs.\n\n",
    "def area(shapes):\n    total = 0.0\n    for shape in shapes:\n        if shape.kind == 'circle':\n            "
    "total += 3.14159 * "
    "shape.radius ** 2\n        else:\n            total += shape.width * shape.height\n    return total\n\n"};

bool wants_prefixes(const std::string& by) { return by == "shift" || by == "paper"; }

std::vector<HeadProfile> profile_all(Engine& engine, const std::vector<CaseSource>& cases, const ProfileOptions& o) {
  std::vector<HeadProfile> out;
  Progress progress("profiling");
  HeadProfileOptions options = o.heads;
  for (const char* text : kPrefixes) {
    if (wants_prefixes(o.by)) options.prefixes.push_back(value_or_fail(engine.tokenize(text, false, false)));
  }
  const auto first = value_or_fail(engine.tokenize("", false, true));
  for (const CaseSource& source : cases) {
    const Prompt prompt = prompt_to_profile(engine, source, o.most_tokens);
    options.prefix_at = first.size() == 1 && !prompt.ids.empty() && first[0] == prompt.ids[0] ? 1 : 0;
    options.progress = [&](double share) {
      progress.at((static_cast<double>(out.size()) + share) / static_cast<double>(cases.size()), source.id);
    };
    out.push_back(value_or_fail(profile_heads(engine, prompt.ids, options)));
  }
  return out;
}

// The policies of the evaluation; the engine gets the maps.
std::vector<PolicySpec> policies_of(Engine& engine, const HeadMap& map) {
  std::vector<PolicySpec> out{value_or_fail(parse_policy("full"))};
  const auto add = [&](const std::string& name, const HeadMap& given) {
    if (const Status set = engine.set_head_map(name, head_map_json(given)); !set.ok()) fail(set.error());
    out.push_back(value_or_fail(parse_policy("redknot:map=" + name)));
    out.back().label = name;
  };
  add(kMapName, map);
  for (int seed = 1; seed <= kRandomMaps; ++seed)
    add(fmt::format("random-{}", seed), control_of(map, "random", static_cast<uint64_t>(seed)));
  add("first", control_of(map, "first"));
  add("last", control_of(map, "last"));
  add("all-local", control_of(map, "none"));
  return out;
}

void evaluate(Engine& engine, const std::vector<CaseSource>& cases, const ProfileOptions& o, HeadReport& report) {
  const auto policies = policies_of(engine, report.map);
  RunOptions run;
  run.prompt_rows = o.rows;
  run.warm = Warm::kAlone;  // no piece is an exact prefix: every row is computed under the map
  std::vector<CaseResult> results;
  RunEvents events;
  Progress progress("evaluating");
  events.on_result = [&](const CaseResult& result) {
    results.push_back(result);
    return Status();
  };
  events.on_progress = [&](double share, double, const std::string& note) { progress.at(share, note); };
  value_or_fail(run_cases(engine, cases, policies, run, events));
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const PolicySpec& policy : policies) {
    if (policy.label != "full" && policy.label != kMapName) pairs.emplace_back(kMapName, policy.label);
  }
  report.rows = aggregate_rows(results, policies);
  report.pairs = pair_rows(results, pairs);
  double worst_high = 0, ratio = 0;
  for (const auto& row : report.pairs) {
    const bool over_all = row["suite"] == report.pairs.back()["suite"];
    if (!over_all || row["b"].get<std::string>().rfind("random", 0) != 0) continue;
    worst_high = std::max(worst_high, row["kl_prompt_ratio_ci"][1].get<double>());
    ratio += std::log(row["kl_prompt_ratio"].get<double>()) / kRandomMaps;
  }
  ratio = std::exp(ratio);
  report.verdict =
      worst_high < 1
          ? fmt::format(
                "The profiled map is better than each of {} random maps of the same share: KL over the last rows "
                "is {:.2f} of theirs (geometric mean over {} cases).",
                kRandomMaps, ratio, cases.size())
          : fmt::format(
                "THE PROFILED MAP IS NO BETTER THAN RANDOM ON THIS EVALUATION: KL over the last rows is {:.2f} of {} "
                "random maps' (geometric mean over {} cases), and an interval reaches {:.2f}.",
                ratio, kRandomMaps, cases.size(), worst_high);
}

// "map.json" -> "map.random.json"
std::string next_to(const std::string& path, const std::string& what) {
  const size_t dot = path.rfind(".json");
  return dot != std::string::npos && dot + 5 == path.size() ? path.substr(0, dot) + "." + what + ".json"
                                                            : path + "." + what;
}

void print(const HeadReport& report) {
  if (report.rows.empty()) return void(std::printf("%s\n", report.verdict.c_str()));
  std::printf("%s\n\n%-12s %4s %20s %20s %8s\n", report.verdict.c_str(), "policy", "n", "KL, last rows", "KL, answer",
              "FLOPs");
  for (const auto& row : report.rows) {
    if (row["suite"] != report.rows.back()["suite"]) continue;
    std::printf("%-12s %4d %20s %20s %8.3f\n", row["label"].get<std::string>().c_str(), row["n"].get<int>(),
                with_interval(row, "kl_prompt").c_str(), with_interval(row, "kl_answer").c_str(),
                row["flops_ratio"].get<double>());
  }
}

// FILE, FILE.random.json, FILE.first.json.
void write_maps(const HeadMap& map, const std::string& path) {
  if (path.empty()) return;
  write_text(path, head_map_json(map));
  write_text(next_to(path, "random"), head_map_json(control_of(map, "random", 1)));
  write_text(next_to(path, "first"), head_map_json(control_of(map, "first")));
}

// One profile, a map of each share: FILE.10.json of 0.1.
void write_shares(const HeadReport& report, ProfileOptions o) {
  for (const std::string& text : split_commas(o.shares)) {
    char* end = nullptr;
    o.choice.share = std::strtod(text.c_str(), &end);
    if (end == text.c_str() || *end != 0 || !(o.choice.share >= 0 && o.choice.share <= 1))
      fail("--shares: '" + text + "' is no share");
    write_maps(choose_head_map(report.profile, report.score, o.choice),
               next_to(o.out, fmt::format("{}", std::lround(100 * o.choice.share))));
  }
}

void profile(ProfileOptions o, int argc, char** argv) {
  if (!o.shares.empty() && o.out.empty()) fail("--shares needs --out FILE: the maps are written next to it");
  o.heads.ablation = o.by == "ablation";
  o.choice.window = o.heads.window, o.choice.sink = o.heads.sink;
  Report file(argc, argv);
  auto engine = open_or_exit(o.engine);
  file.set_model(engine->info());
  const ProfileCases cases = profile_cases(*engine, o.from, o.profiled);
  const int profiled = static_cast<int>(cases.first.size());
  HeadReport report;
  report.same_prompts = cases.same;
  const std::vector<HeadProfile> profiles = profile_all(*engine, cases.first, o);
  report.model = engine->info().name;
  for (int i = 0; i < argc; ++i) report.command += (i ? " " : "") + std::string(argv[i]);
  report.by = o.by;
  report.prompts = profiled;
  report.profile = mean_profile(profiles);
  report.stability = score_stability(profiles, o.by);
  report.score = head_scores(report.profile, o.by);
  report.map = choose_head_map(report.profile, report.score, o.choice);
  write_maps(report.map, o.out);
  write_shares(report, o);
  report.verdict = "The map was not tested (--map-only): it may be no better than a random one.";
  if (!o.map_only) evaluate(*engine, cases.rest, o, report);
  print(report);
  for (auto& row : report.rows) file.add(row);
  file.set("pairs", report.pairs);
  file.set("heads", {{"by", o.by},
                     {"prompts", profiled},
                     {"stability", report.stability},
                     {"ablation", report.profile.ablation},
                     {"edge_mean", report.profile.edge_mean},
                     {"edge_max", report.profile.edge_max},
                     {"shift_max", report.profile.shift_max},
                     {"shift_mean", report.profile.shift_mean},
                     {"windows", report.profile.windows},
                     {"inside", report.profile.inside}});
  file.set("verdict", report.verdict);
  file.write(o.json);
  write_text(o.markdown, head_markdown(report));
  write_text(o.html, head_html(report));
}

}  // namespace

void add_profile(Program& program) {
  auto profile = program.app.add_subcommand("profile", "what a model does on your own text");
  profile.require_subcommand();
  add_profile_layers(profile);
  auto app =
      profile.add_subcommand("heads", "which KV heads may read only a window? makes a head map for --policy redknot");
  auto o = std::make_shared<ProfileOptions>();
  add_engine_options(app, o->engine, true);
  add_case_options(app, o->from);
  app.add_option("--out,-o", o->out,
                 "write the map to this file, and controls next to it (FILE.random.json, FILE.first.json)");
  app.add_option(
         "--by", o->by,
         "ablation (KL when only this head is local: half a forward a head), edge-mean or edge-max (attention outside "
         "of the window: one forward), shift (1 - cosine of its attention with and without a prefix: three forwards), "
         "paper (the higher of edge-max and shift)")
      .one_of({"ablation", "edge-mean", "edge-max", "shift", "paper"})
      .show_default();
  app.add_option("--share", o->choice.share, "of the heads that are to see everything").range(0.0, 1.0).show_default();
  app.add_option(
      "--shares", o->shares,
      "also write maps of these shares, of the same profile, comma-separated: 0.1,0.5 writes FILE.10.json and "
      "FILE.50.json, with their controls");
  app.add_flag("--map-only", o->map_only, "write the maps and test none (a study tests them with kvilt eval)");
  app.add_option("--loss", o->choice.loss,
                 "instead: as few as leave local heads whose scores sum to no more than this");
  app.add_option("--window", o->heads.window, "of local heads").show_default();
  app.add_option("--sink", o->heads.sink, "of local heads").show_default();
  app.add_option(
      "--window-mass", o->choice.window_mass,
      "instead of one window: for each local head the shortest one tried that holds this share of its attention");
  app.add_option("--rows", o->heads.rows, "the prompt's last rows, on which the ablation's KL is taken").show_default();
  app.add_option("--profile", o->profiled,
                 "cases that are profiled; the others are evaluated (0: half of them, at most 4)");
  app.add_option("--max-tokens", o->most_tokens, "longest prompt that is profiled").show_default();
  app.add_option("--prompt-rows", o->rows, "the prompt's last rows, on which the evaluation's KL is taken")
      .range(1, 1024)
      .show_default();
  app.add_option("--html", o->html, "write a page with a picture of layers x heads to this file");
  app.add_option("--markdown", o->markdown, "write tables to this file");
  app.add_option("--json", o->json, "write rows and scores to this file");
  app.callback([o, &program] { kvilt::profile(*o, program.argc, program.argv); });
  add_profile_sparse(profile, program);
}

}  // namespace kvilt
