// apps/profile_sparse.cc: kvilt profile sparse: which keys should the rows of each KV head see while a prompt is
// computed? From the user's own questions to a sparse map for policy minference.
// Method: some cases are profiled (kvilt/sparse_profile.h); each head takes what holds most of its attention at the same
//         cost (model/pattern_choice.h). On the other cases the map is measured in the same way, beside maps with one
//         kind of pattern, and beside its own patterns dealt out to the heads by chance.
// Source: MInference (arXiv:2407.02490); docs/design/sparse.md#a-pattern-for-each-head.
#include <algorithm>
#include <cstdio>
#include <random>

#include "apps/case_sources.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "base/error.h"
#include "base/random.h"
#include "eval/report.h"
#include "kvilt/sparse_profile.h"
#include "model/pattern_choice.h"

namespace kvilt {
namespace {

constexpr int kDeals = 3;  // of the map's patterns to its heads

struct SparseProfileFlags {
  EngineOptions engine;
  CaseOptions from;
  std::string out, json;
  double share = 0.3;
  int profiled = 0, most_tokens = 4096;
};

SparseProfile profile_prompts(Engine& engine, const std::vector<std::vector<int32_t>>& prompts, int longest,
                              const char* what) {
  SparseProfileOptions options;
  options.patterns = candidate_patterns(longest);
  std::vector<SparseProfile> out;
  Progress progress(what);
  options.progress = [&](double share) {
    progress.at((static_cast<double>(out.size()) + share) / static_cast<double>(prompts.size()));
  };
  for (const auto& prompt : prompts) out.push_back(value_or_fail(profile_patterns(engine, prompt, options)));
  return mean_profile(out);
}

// The patterns of those heads of which all rows were tried: the last layer's, of one row, cost next to nothing.
SparseMap dealt(SparseMap map, const SparseProfile& profile, uint64_t seed) {
  std::mt19937_64 rng(seed);
  const double most = *std::ranges::max_element(profile.rows);
  std::vector<size_t> heads;
  std::vector<HeadPattern> patterns;
  for (size_t head = 0; head < map.heads.size(); ++head) {
    if (profile.rows[head] != most) continue;
    heads.push_back(head);
    patterns.push_back(map.heads[head]);
  }
  shuffle(patterns, rng);
  for (size_t i = 0; i < heads.size(); ++i) map.heads[heads[i]] = patterns[i];
  return map;
}

struct MapRow {
  std::string name;
  HeldAt held;
};

// The map on prompts that it was not made of, and what it has to beat. by: what maps are chosen by.
std::vector<MapRow> compared(const SparseProfile& by, const SparseProfile& on, const SparseMap& map, double share) {
  std::vector<MapRow> out{{"map", held_at(on, map)}};
  using Is = HeadPattern::Is;
  for (const Is is : {Is::kLines, Is::kBlocks, Is::kAShape})
    out.push_back({fmt::format("{} only", pattern_name(is)), held_at(on, choose_sparse_map(by, share, is))});
  HeldAt mean;
  for (uint64_t seed = 1; seed <= kDeals; ++seed) {
    const HeldAt one = held_at(on, dealt(map, by, seed));
    mean.held += one.held / kDeals;
    mean.cost += one.cost / kDeals;
  }
  out.push_back({"dealt by chance", mean});
  return out;
}

std::string verdict_of(const std::vector<MapRow>& rows, double share) {
  const MapRow& map = rows.front();
  const auto worse = [&](const MapRow& row) { return row.held.held < map.held.held || row.held.cost > share; };
  if (std::all_of(rows.begin() + 1, rows.end(), worse))
    return fmt::format("The map holds {:.4f} of the attention, more than each of the others at a cost of {} or less.",
                       map.held.held, share);
  return fmt::format("AT A COST OF {} THE MAP HOLDS NO MORE THAN A KIND OF PATTERN FOR ALL HEADS, OR THAN CHANCE.",
                     share);
}

nlohmann::ordered_json patterns_of(const SparseMap& map) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const HeadPattern& pattern : map.heads) out.push_back(nlohmann::ordered_json::parse(pattern_json(pattern)));
  return out;
}

void profile_sparse(const SparseProfileFlags& o, int argc, char** argv) {
  Report file(argc, argv);
  auto engine = open_or_exit(o.engine);
  file.set_model(engine->info());
  const ProfileCases cases = profile_cases(*engine, o.from, o.profiled);
  size_t longest = 0;
  const auto prompts_of = [&](const std::vector<CaseSource>& sources) {
    std::vector<std::vector<int32_t>> out;
    for (const CaseSource& source : sources) {
      out.push_back(prompt_to_profile(*engine, source, o.most_tokens).ids);
      longest = std::max(longest, out.back().size());
    }
    return out;
  };
  const auto first = prompts_of(cases.first), rest = prompts_of(cases.rest);
  const SparseProfile profile = profile_prompts(*engine, first, static_cast<int>(longest), "profiling");
  const SparseMap map = choose_sparse_map(profile, o.share);
  if (!o.out.empty()) write_text(o.out, sparse_map_json(map));
  const SparseProfile on = cases.same ? profile : profile_prompts(*engine, rest, static_cast<int>(longest), "testing");
  const std::vector<MapRow> rows = compared(profile, on, map, o.share);
  const std::string verdict = verdict_of(rows, o.share);
  std::printf("%s\n%zu prompts profiled, %zu %s\n\n%-16s %10s %10s\n", verdict.c_str(), first.size(), rest.size(),
              cases.same ? "tested: the same ones" : "others tested", "map", "held", "cost");
  for (const MapRow& row : rows) {
    std::printf("%-16s %10.4f %10.3f\n", row.name.c_str(), row.held.held, row.held.cost);
    file.add({{"map", row.name}, {"held", row.held.held}, {"cost", row.held.cost}});
  }
  std::printf("\n");
  for (const auto is : {HeadPattern::Is::kLines, HeadPattern::Is::kBlocks, HeadPattern::Is::kAShape}) {
    const auto heads = std::ranges::count(map.heads, is, &HeadPattern::is);
    std::printf("%-16s %4d of %zu KV heads\n", std::string(pattern_name(is)).c_str(), static_cast<int>(heads),
                map.heads.size());
  }
  file.set("patterns", patterns_of(map));
  file.set("same_prompts", cases.same);
  file.set("verdict", verdict);
  file.write(o.json);
}

}  // namespace

void add_profile_sparse(Command profile, Program& program) {
  auto app = profile.add_subcommand(
      "sparse", "which keys should each KV head's rows see in a prompt? makes a sparse map for --policy minference");
  auto o = std::make_shared<SparseProfileFlags>();
  add_engine_options(app, o->engine, true);
  add_case_options(app, o->from);
  app.add_option("--out,-o", o->out, "write the map to this file");
  app.add_option("--share", o->share,
                 "what each head may cost, choice included, of its dense attention on these prompts")
      .range(0.0, 1.0)
      .show_default();
  app.add_option("--profile", o->profiled,
                 "cases that the map is made of; it is tested on the others (0: half of them, at most 4)");
  app.add_option("--max-tokens", o->most_tokens, "longest prompt that is profiled").show_default();
  app.add_option("--json", o->json, "write what was measured to this file");
  app.callback([o, &program] { profile_sparse(*o, program.argc, program.argv); });
}

}  // namespace kvilt
