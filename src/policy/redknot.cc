// policy/redknot.cc: RedKnot: every KV head reads what it needs. A head map (model/head_map.h) says which heads are
// local (sink and window, in prefill and decode); the others read everything. All after the exact prefix is computed.
// Source:  RedKnot (arXiv:2606.06256), docs/papers.md#redknot; design and parameters: docs/design/heads.md.
// Maps:    that of the engine (map=NAME, read from a file), or a control: global=all | none | first | last | random,
//          with `share` of the heads global.
// local:   fresh (default): local heads keep what was just computed. stored, as in the paper: they keep the realigned
//          KV of known pieces, which saves no FLOPs and was worse (docs/results/README.md).
// restore: if > 0, a local head whose last rows have more than this share of their attention outside its view reads
//          everything in this request. A first stage looks: the question over the known pieces as they are, or the
//          whole prompt where nothing is known.
// shallow: in this many first layers every head is local, as in the paper's algorithm (in its code the class decides).
// ffn_mass: if < 1, the FFN runs on some rows only (plan/plan.h, FfnRule). Off by default: on the real model the
//          paper's choice of rows was no better than chance.
// Differs: from the paper: sink and window are a set; retrieval heads read everything; only the class decides a head's
//          view; what is computed is never published.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "model/head_choice.h"
#include "policy/question_stage.h"

namespace kvilt {
namespace {

struct RedKnotParams {
  std::shared_ptr<const HeadMap> map;  // null: a control
  std::string global;
  double share = 0.25;
  uint64_t seed = 1;
  int window = -1, sink = -1;  // -1: the map's
  int dense_prefix_layers = 0, shallow = 0;
  bool stored = false;  // local heads keep the placed KV of known pieces
  double restore = 0;   // 0: off
  int restore_rows = 32;
  std::optional<FfnRule> ffn;
};

// `share` of the heads global, as the name says; the others local.
HeadMap control_map(const RedKnotParams& params, const ModelConfig& config) {
  const double heads = config.L * config.G;
  return control_head_map(config.L, config.G,
                          {params.global, static_cast<size_t>(std::llround(params.share * heads)), params.seed});
}

// None without a mass or a threshold: the others say where these apply.
std::optional<FfnRule> ffn_rule(PolicyParams& p, uint64_t seed) {
  if (!p.given("ffn_mass") && !p.given("ffn_deep_mass") && !p.given("ffn_experts")) return {};
  FfnRule ffn;
  ffn.mass = p.number("ffn_mass", 1, 0, 1);
  ffn.deep_mass = p.number("ffn_deep_mass", ffn.mass, 0, 1);
  ffn.layer_begin = p.integer("ffn_start", 0, 0, 1 << 16);
  ffn.deep_begin = p.integer("ffn_deep", 1 << 16, 0, 1 << 16);
  ffn.expert_threshold = p.number("ffn_experts", 0, 0, 100);
  ffn.recent = p.integer("ffn_recent", 128, 0, 1 << 30);
  const std::string by = p.choice("ffn_by", "attention", {"attention", "residual", "random"});
  ffn.by = by == "random" ? FfnRule::By::kRandom : by == "residual" ? FfnRule::By::kResidual : FfnRule::By::kAttention;
  ffn.seed = seed;
  if (ffn.mass < 1 || ffn.deep_mass < 1 || ffn.expert_threshold > 0) return ffn;
  return {};
}

class RedKnot : public ReusePolicy {
 public:
  explicit RedKnot(RedKnotParams params) : params_(std::move(params)) {}

  // All after the exact prefix is computed anyhow; pieces serve local=stored, and the first look of restore.
  bool wants_pieces() const override { return params_.stored || params_.restore > 0; }

  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Stage stage = uniform_stage({layout.after_prefix()}, config.L);
    stage.ffn = params_.ffn;
    if (stage.ffn && layout.answer >= 0) stage.ffn->answer = layout.answer;
    Plan plan = plan_for(layout, {std::move(stage)});
    const HeadMap map = params_.map ? *params_.map : control_map(params_, config);
    set_views(map, config, plan);
    set_classes(map, plan);
    keep_placed(layout, plan);
    if (params_.restore > 0 && plan.narrowed()) {
      plan.stages.insert(plan.stages.begin(), look(layout, config, plan));
      plan.head_view.clear();  // the first stage sees everything
    }
    return plan;
  }

  void refine(const PromptLayout& layout, const ModelConfig& config, int stage, std::span<const Probe> probes,
              Plan& plan) const override {
    if (stage + 1 == static_cast<int>(plan.stages.size())) return;
    const ProbeSpec& spec = plan.stages[0].probes[0];
    const HeadMap map = params_.map ? *params_.map : control_map(params_, config);
    set_views(map, config, plan);
    const size_t group = config.H / config.G;
    const auto rows = static_cast<double>(count(spec.rows));
    for (size_t head = 0; head < plan.head_view.size(); ++head) {
      uint16_t& view = plan.head_view[head];
      for (size_t h = head * group; h < (head + 1) * group && view != 0; ++h) {
        if (probes[0].outside[h * spec.views.size() + view] > params_.restore * rows) view = 0;
      }
    }
    set_classes(map, plan);
    keep_placed(layout, plan);
  }

 private:
  // The fresh rows and the question over the placed pieces; the probe: the last rows' attention outside of every view.
  Stage look(const PromptLayout& layout, const ModelConfig& config, const Plan& plan) const {
    Stage stage = question_stage(layout, config, Estimator::kOutside, params_.restore_rows);
    ProbeSpec& probe = stage.probes[0];
    const int32_t end = layout.asked_end();
    // The prefix may reach into the answer, if another request has published both.
    probe.rows = {{std::max(std::min(layout.prefix, end - 1), end - params_.restore_rows), end}};
    probe.key_end = -1;
    probe.views = plan.views;  // with the same numbers; view 0 hides nothing
    stage.sets[0] = unite(stage.sets[0], intersect(probe.rows, Runs{layout.after_prefix()}));
    stage.discard = true;  // the next stage starts from the pieces as they were placed
    return stage;
  }

  void keep_placed(const PromptLayout& layout, Plan& plan) const {
    if (!params_.stored || layout.pieces.empty()) return;
    std::vector<uint8_t>& keeps = plan.stages.back().keeps_placed;  // REQUIRES: the views are set
    keeps.assign(plan.head_view.size(), 0);
    for (size_t i = 0; i < keeps.size(); ++i) keeps[i] = plan.head_view[i] != 0;
    if (std::ranges::count(keeps, 1) == 0) keeps.clear();
  }

  void set_views(const HeadMap& map, const ModelConfig& config, Plan& plan) const {
    CHECK(map.L == config.L && map.G == config.G);
    plan.head_view.assign(map.heads.size(), 0);
    for (int l = params_.dense_prefix_layers; l < map.L; ++l) {
      for (int g = 0; g < map.G; ++g) {
        const int i = l * map.G + g;
        const bool made_local =
            l < params_.shallow && map.heads[i] != HeadClass::kDense && l >= map.dense_prefix_layers;
        if (!map.local(l, g) && !made_local) continue;
        const int window = map.window[i] >= 0 ? map.window[i] : HeadMap::kWindow;
        const int sink = map.window[i] >= 0 ? map.sink[i] : HeadMap::kSink;
        constexpr int32_t kLongest = 1 << 30;  // a map may say more; sums with positions must stay in range
        const View view{{std::min(params_.sink >= 0 ? params_.sink : sink, kLongest),
                         std::min(params_.window >= 0 ? params_.window : window, kLongest)}};
        auto known = std::ranges::find(plan.views, view);
        if (known == plan.views.end()) known = plan.views.insert(known, view);
        plan.head_view[i] = static_cast<uint16_t>(known - plan.views.begin());
      }
    }
  }

  // Each head's class by its view: local heads that were restored, or whose view hides nothing, are global.
  static void set_classes(const HeadMap& map, Plan& plan) {
    plan.head_class.clear();
    for (size_t i = 0; i < map.heads.size(); ++i) {
      const bool dense = static_cast<int>(i) / map.G < map.dense_prefix_layers;
      plan.head_class.push_back(plan.head_view[i] != 0              ? HeadClass::kLocal
                                : dense                             ? HeadClass::kDense
                                : map.heads[i] == HeadClass::kLocal ? HeadClass::kGlobal
                                                                    : map.heads[i]);
    }
  }

  const RedKnotParams params_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_redknot(PolicyParams& p) {
  constexpr int kMost = 1 << 30;
  RedKnotParams params;
  params.map = p.head_map("map");
  params.global = p.choice("global", "map", {"map", "all", "none", "first", "last", "random"});
  if (params.global != "map") {
    params.share = params.map ? params.map->global_share() : params.share;
    params.map = nullptr;
  } else if (!params.map) {
    p.wrong(
        "it needs a head map: start with --head-map FILE (kvilt profile heads makes one), or give global=all, none, "
        "first, last or random");
  }
  const bool some = params.global == "first" || params.global == "last" || params.global == "random";
  if (some) params.share = p.number("share,budget", params.share, 0, 1);
  params.seed = static_cast<uint64_t>(p.integer("seed", 1, 0, kMost));
  params.window = p.integer("window", params.map ? -1 : HeadMap::kWindow, -1, kMost);
  params.sink = p.integer("sink", params.map ? -1 : HeadMap::kSink, -1, kMost);
  params.dense_prefix_layers = p.integer("dense_prefix_layers", 0, 0, 1 << 16);
  params.shallow = p.integer("shallow", 0, 0, 1 << 16);
  params.stored = p.choice("local", "fresh", {"fresh", "stored"}) == "stored";
  if (p.given("restore")) {
    params.restore = p.number("restore", 0, 0, 1);
    params.restore_rows = p.integer("restore_rows", 32, 1, 256);
  }
  params.ffn = ffn_rule(p, params.seed);
  if (params.global != "random" && !(params.ffn && params.ffn->by == FfnRule::By::kRandom)) p.without_effect("seed");
  return std::make_unique<RedKnot>(std::move(params));
}

}  // namespace kvilt
