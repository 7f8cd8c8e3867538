// reuse/mend.cc: this project's own repair: select, recompute, and carry the change over to the tokens that are not recomputed.
// Source: METHODS 2.6, FINDINGS ('the mechanism'); docs/math/carry.md. Stage I as ProphetKV's, scored by attention * |V|; stage II
// computes the r |reused| highest and the question from the embeddings, and in every layer what changed at them is carried
// over to their neighbours of the same piece: most of a reused piece's error is nearly one vector per (piece, layer, head),
// so that the recomputed tokens tell how the others would have changed.
// anchors > 0 adds evenly strided tokens of every piece; with r = 0 they are all, and no stage I is needed.
#include <algorithm>
#include <cmath>
#include <functional>

#include "reuse/question_stage.h"

namespace kvilt {
namespace {

struct MendParams {
  double r;       // share of the reused tokens; .15 beat ProphetKV's .20 at 18 % fewer FLOPs (FINDINGS)
  double mass;    // > 0: as many tokens as hold this share of the score, between r / 2 and 2 r
  double spread;  // 0: the r highest; else how much of a token's need its carried neighbour is trusted to settle
  int anchors, tail;
  bool value_norm;
  bool carries;
  Carry carry;
};

// Groups of the kernel regression: its cost grows with the cube of a group, and beyond some hundred tokens a piece gains
// nothing from being whole.
constexpr int32_t kGroup = 512;

std::vector<Run> groups(const std::vector<Run>& pieces) {
  std::vector<Run> out;
  for (const Run& piece : pieces) {
    const int32_t parts = (piece.size() + kGroup - 1) / kGroup;
    for (int32_t i = 0; i < parts; ++i) {
      out.push_back({piece.begin + static_cast<int32_t>(int64_t{piece.size()} * i / parts),
                     piece.begin + static_cast<int32_t>(int64_t{piece.size()} * (i + 1) / parts)});
    }
  }
  return out;
}

// A greedy choice: a token counts with its score as far as the carry from tokens chosen before does not settle it, and with
// what it settles for its neighbours of the same group.
class Spread {
 public:
  Spread(const MendParams& params, const PromptLayout& layout, std::span<const double> score)
      : need_(score.size(), 0), gain_(score.size(), kTaken), home_(score.size()), score_(score) {
    const auto reach = static_cast<int32_t>(std::ceil(2 * params.carry.width));
    for (int32_t d = 0; d <= reach; ++d) {
      const double x = d / static_cast<double>(params.carry.width);
      settles_.push_back(d == 0 ? 1 : params.spread * std::exp(-x * x / 2));
    }
    for (const Run& group : groups(layout.pieces)) {
      std::fill(home_.begin() + group.begin, home_.begin() + group.end, group);
    }
  }

  Runs choose(const Runs& candidates, int64_t n) {
    const std::vector<int32_t> all = positions(candidates);
    for (const int32_t p : all) need_[static_cast<size_t>(p)] = score_[static_cast<size_t>(p)];
    for (const int32_t p : all) weigh(p);
    std::vector<int32_t> chosen;
    while (static_cast<int64_t>(chosen.size()) < std::min<int64_t>(n, static_cast<int64_t>(all.size()))) {
      const int32_t best = *std::max_element(all.begin(), all.end(), [&](int32_t a, int32_t b) {
        return gain_[static_cast<size_t>(a)] < gain_[static_cast<size_t>(b)];
      });
      chosen.push_back(best);
      const Run near = around(best, 1);
      for (int32_t u = near.begin; u < near.end; ++u) need_[static_cast<size_t>(u)] *= 1 - settled(u, best);
      gain_[static_cast<size_t>(best)] = kTaken;
      const Run touched = around(best, 2);
      for (int32_t u = touched.begin; u < touched.end; ++u) {
        if (gain_[static_cast<size_t>(u)] != kTaken) weigh(u);
      }
    }
    std::sort(chosen.begin(), chosen.end());
    return runs_of(chosen);
  }

 private:
  static constexpr double kTaken = -1;  // or no candidate
  double settled(int32_t a, int32_t b) const { return settles_[static_cast<size_t>(std::abs(a - b))]; }
  Run around(int32_t p, int32_t times) const {
    const Run& group = home_[static_cast<size_t>(p)];
    const auto reach = times * (static_cast<int32_t>(settles_.size()) - 1);
    return {std::max(group.begin, p - reach), std::min(group.end, p + reach + 1)};
  }
  void weigh(int32_t p) {
    double sum = 0;
    const Run near = around(p, 1);
    for (int32_t u = near.begin; u < near.end; ++u) sum += need_[static_cast<size_t>(u)] * settled(u, p);
    gain_[static_cast<size_t>(p)] = sum;
  }

  std::vector<double> need_, gain_, settles_;
  std::vector<Run> home_;  // the group of each position
  const std::span<const double> score_;
};

class Mend : public ReusePolicy {
 public:
  explicit Mend(const MendParams& params) : params_(params) {}

  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Plan plan;
    plan.prompt_len = layout.prompt_len;
    Stage repair = uniform_stage({{layout.prefix, layout.prompt_len}}, config.L);
    if (layout.pieces.empty()) {
      plan.stages = {repair};
      return plan;
    }
    if (params_.carries) {
      repair.carry = params_.carry;
      repair.carry->parts = groups(layout.pieces);
    }
    if (params_.r > 0) {
      const auto estimator = params_.value_norm ? Estimator::kColumnSumValueNorm : Estimator::kColumnSum;
      plan.stages.push_back(question_stage(layout, config, estimator, params_.tail));
    } else {
      repair.sets[0] = unite(always_computed(layout, params_.tail), anchors(layout));
    }
    plan.stages.push_back(repair);
    return plan;
  }

  void refine(const PromptLayout& layout, const ModelConfig&, int stage, std::span<const Probe> probes,
              Plan& plan) const override {
    if (stage + 1 == static_cast<int>(plan.stages.size())) return;
    const Runs always = unite(always_computed(layout, params_.tail), anchors(layout));
    const Runs candidates = subtract(layout.reused(), always);
    const auto& score = probes[0].score;
    int64_t n = budget_of(layout, params_.r);
    if (params_.mass > 0) n = std::clamp(holding(score, candidates, params_.mass), n / 2, 2 * n);
    plan.stages.back().sets[0] = unite(always, params_.spread > 0 ? Spread(params_, layout, score).choose(candidates, n)
                                                                  : top_positions(score, candidates, n));
  }

 private:
  // The middles of `anchors` equal parts of every piece: not its first tokens, which change otherwise than the rest.
  Runs anchors(const PromptLayout& layout) const {
    Runs out;
    for (const Run& piece : layout.pieces) {
      const int32_t n = std::min<int32_t>(params_.anchors, piece.size());
      for (int32_t i = 0; i < n; ++i) {
        const auto pos = piece.begin + static_cast<int32_t>(int64_t{piece.size()} * (2 * i + 1) / (2 * n));
        out.push_back({pos, pos + 1});
      }
    }
    return normalize(out);
  }

  // How many of the highest hold `mass` of the score.
  static int64_t holding(std::span<const double> score, const Runs& candidates, double mass) {
    std::vector<double> all;
    double total = 0;
    for (const int32_t pos : positions(candidates)) total += all.emplace_back(score[static_cast<size_t>(pos)]);
    std::sort(all.begin(), all.end(), std::greater<>());
    int64_t n = 0;
    for (double held = 0; n < static_cast<int64_t>(all.size()) && held < mass * total; ++n) {
      held += all[static_cast<size_t>(n)];
    }
    return n;
  }

  const MendParams params_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_mend(PolicyParams& p) {
  MendParams params;
  params.r = p.number("r,budget", 0.15, 0, 1);
  params.mass = p.number("mass", 0, 0, 1);
  params.spread = p.number("spread", 0, 0, 1);
  params.anchors = p.integer("anchors", 0, 0, 1 << 20);
  params.tail = p.integer("tail", 64, 1, 1 << 20);
  params.value_norm = p.choice("value_norm", "yes", {"yes", "no"}) == "yes";
  const std::string kernel = p.choice("carry", "gaussian", {"gaussian", "mean", "nearest", "none"});
  params.carries = kernel != "none";
  params.carry.kernel = kernel == "mean"      ? Carry::Kernel::kMean
                        : kernel == "nearest" ? Carry::Kernel::kNearest
                                              : Carry::Kernel::kGaussian;
  params.carry.width = static_cast<float>(p.number("width", 8, 0.01, 1e6));
  params.carry.scale_k = static_cast<float>(p.number("scale_k", 1, 0, 4));
  // With the plain mean half of V's change was best, with the local kernels all of it (FINDINGS, second study, 2).
  params.carry.scale_v = static_cast<float>(p.number("scale_v", kernel == "mean" ? 0.5 : 1, 0, 4));
  params.carry.layer_begin = p.integer("carry_from", 1, 0, 10000);
  return std::make_unique<Mend>(params);
}

}  // namespace kvilt
