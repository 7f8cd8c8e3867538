// apps/profile_layers.cc: kvilt profile layers: in which layers does a model's attention agree on what matters in the user's
// own text? To a layer map for policy samkv.
// Method: each case's prompt is profiled as one text (kvilt/layer_profile.h); a layer's score is the share of the prompts
//         in which it is stable. The layers with the highest scores are the map's.
// Source: SamKV, appendix A.2 (docs/papers.md#samkv).
#include <cstdio>

#include "apps/case_sources.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "apps/report.h"
#include "base/error.h"
#include "eval/prompt.h"
#include "kvilt/layer_profile.h"
#include "model/layer_map.h"

namespace kvilt {
namespace {

struct LayersOptions {
  EngineOptions engine;
  CaseOptions from;
  LayerProfileOptions layers;
  std::string out;
  int count = 0, most_tokens = 4096;
};

// By layer, the share of the prompts in which it is stable; prompts that are too long or too short are left out.
std::vector<double> layer_scores(Engine& engine, const std::vector<CaseSource>& cases, const LayersOptions& o,
                                 int& profiled) {
  std::vector<double> sum(static_cast<size_t>(engine.info().layers), 0);
  std::string last_error;
  for (const CaseSource& source : cases) {
    const Prompt prompt = value_or_fail(case_prompt(engine, value_or_fail(source.make())));
    if (static_cast<int>(prompt.ids.size()) > o.most_tokens) {
      last_error = fmt::format("case '{}' has {} tokens: give --max-tokens", source.id, prompt.ids.size());
      continue;
    }
    const Result<LayerProfile> profile = profile_layers(engine, prompt.ids, o.layers);
    if (!profile.ok()) {
      last_error = fmt::format("case '{}': {}", source.id, profile.error().message);
      continue;
    }
    for (size_t l = 0; l < sum.size(); ++l) sum[l] += profile->stable[l];
    ++profiled;
  }
  if (profiled == 0) fail("no case could be profiled; the last one: " + last_error);
  for (double& score : sum) score /= profiled;
  return sum;
}

void write_layer_map(const LayersOptions& o) {
  if (o.from.empty()) fail("give --cases FILE or --suite NAME: texts like those that the model will be asked about");
  auto engine = open_or_exit(o.engine);
  int profiled = 0;
  const std::vector<double> scores = layer_scores(*engine, sources_of(*engine, o.from), o, profiled);
  const int L = engine->info().layers;
  const LayerMap map = choose_layer_map(scores, o.count > 0 ? o.count : (L + 7) / 8);
  std::printf("%d prompts; layers, counted from 0, with the share of the prompts in which they are stable:\n",
              profiled);
  for (int l = 0; l < L; ++l) {
    const bool chosen = std::ranges::find(map.stable, l) != map.stable.end();
    std::printf("%4d  %.2f%s\n", l, scores[l], chosen ? "  *" : "");
  }
  if (std::ranges::max(scores) == 0)
    std::printf(
        "no block stood out in any layer: the map is the last layers, as without a map; try a lower --sigmas\n");
  if (!o.out.empty()) write_text(o.out, layer_map_json(map));
}

}  // namespace

void add_profile_layers(Command& profile) {
  auto app = profile.add_subcommand("layers", "which layers agree on what matters in a text? a layer map for samkv");
  auto o = std::make_shared<LayersOptions>();
  add_engine_options(app, o->engine, true);
  add_case_options(app, o->from);
  app.add_option("--out,-o", o->out, "write the map to this file");
  app.add_option("--layers", o->count, "how many are stable (0: an eighth of the model's)");
  app.add_option("--block", o->layers.block, "tokens of a block").show_default();
  app.add_option("--sigmas", o->layers.sigmas, "how far the block that the model looks at most must stand out")
      .show_default();
  app.add_option("--max-tokens", o->most_tokens, "longest prompt that is profiled").show_default();
  app.callback([o] { write_layer_map(*o); });
}

}  // namespace kvilt
