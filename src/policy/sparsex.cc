// policy/sparsex.cc: SparseX: the fresh tokens' attention at one layer chooses which reused tokens are computed again.
// Source: papers/sparsex (Algorithm 1, 3.4), METHODS 2.1 with its readings; defaults from FINDINGS.
//   R = fresh + the k |reused| highest column sums + b tokens on both sides of every fresh run (+ tail)
// With c = max(0, l_star - 1), the layer whose attention chooses:
//   l_star > 1, phase1=all:      all rows through layers < c; cut at c; R from there       (the paper, 'hybrid')
//   l_star > 1, phase1=catchup:  the fresh rows through layers < c; R restarts from the embeddings   (same choice
//   quality, cheaper) l_star <= 1:                 layer 0's K needs no context, so its probe is free; R from the
//   embeddings ('without hybrid')
// Differs from the paper (docs/papers.md): tail tokens join before the probe; the top k are drawn from reused tokens
// only.
#include <algorithm>
#include <cmath>

#include "policy/policy.h"

namespace kvilt {
namespace {

struct SparseXParams {
  double k;    // share of the reused tokens; the paper gives none
  int l_star;  // -1: 15 % of the layers
  int b;       // overflow tokens on each side of a fresh run
  int tail;    // rows of the last piece that join the fresh ones when the prompt ends in a piece
  bool all;    // phase1
  bool mean;   // over the rows that see a key, instead of the sum
};

class SparseX : public ReusePolicy {
 public:
  explicit SparseX(const SparseXParams& params) : params_(params) {}

  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Plan plan;
    plan.prompt_len = layout.prompt_len;
    const Runs computed{{layout.prefix, layout.prompt_len}};
    if (layout.pieces.empty()) {
      plan.stages = {uniform_stage(computed, config.L)};
      return plan;
    }
    const Runs active = fresh(layout);
    const int cut = cut_layer(config);
    const ProbeSpec probe{Estimator::kColumnSum, {cut}, active};
    if (params_.all && cut > 0) {
      Stage stage = uniform_stage(computed, config.L);
      stage.sets.push_back(computed);  // R, once it is known
      for (size_t l = static_cast<size_t>(cut) + 1; l < stage.write.size(); ++l) stage.write[l] = 1;
      stage.cuts = {cut};
      stage.probes = {probe};
      plan.stages = {stage};
      return plan;
    }
    Stage look = uniform_stage(active, cut);
    look.cuts = {cut};
    look.probes = {probe};
    plan.stages = {look, uniform_stage(computed, config.L)};
    return plan;
  }

  void refine(const PromptLayout& layout, const ModelConfig& config, int stage, std::span<const Probe> probes,
              Plan& plan) const override {
    const Runs reused = layout.reused(), active = fresh(layout);
    std::vector<double> score = probes[0].score;
    if (params_.mean) divide_by_rows(active, score);
    const auto n = static_cast<int64_t>(std::ceil(params_.k * static_cast<double>(count(reused)) - 1e-9));
    const Runs key = top_positions(score, subtract(reused, active), n);
    const Runs overflow = dilate(active, params_.b, {layout.prefix, layout.prompt_len});
    const Runs chosen = unite(unite(active, key), overflow);
    if (plan.stages.size() == 1) {
      plan.stages[0].sets[1] = chosen;
    } else {
      plan.stages[1].sets[0] = chosen;
    }
  }

 private:
  int cut_layer(const ModelConfig& config) const {
    const int l_star = params_.l_star >= 0 ? params_.l_star : static_cast<int>(std::lround(0.15 * config.L));
    return std::clamp(l_star - 1, 0, config.L - 1);
  }

  // The fresh runs; with the last `tail` positions of the final piece where the prompt ends in one.
  Runs fresh(const PromptLayout& layout) const {
    const Runs runs = layout.fresh();
    if (contains(runs, layout.prompt_len - 1)) return runs;
    const int32_t begin = std::max(layout.pieces.back().begin, layout.prompt_len - std::max(1, params_.tail));
    return unite(runs, Runs{{begin, layout.prompt_len}});
  }

  // Column sums favour early keys, which more rows see (METHODS 2.1, error d).
  static void divide_by_rows(const Runs& rows, std::vector<double>& score) {
    int64_t below = 0;
    size_t i = 0;
    const int64_t all = count(rows);
    for (size_t pos = 0; pos < score.size(); ++pos) {
      const auto p = static_cast<int32_t>(pos);
      while (i < rows.size() && rows[i].end <= p) ++i;
      score[pos] /= static_cast<double>(std::max<int64_t>(1, all - below));
      if (i < rows.size() && rows[i].begin <= p) ++below;
    }
  }

  const SparseXParams params_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_sparsex(PolicyParams& p) {
  SparseXParams params;
  params.k = p.number("k,budget", 0.15, 0, 1);
  params.l_star = p.integer("l_star", -1, -1, 10000);
  params.b = p.integer("b", 16, 0, 1 << 20);
  params.tail = p.integer("tail", 64, 0, 1 << 20);
  params.all = p.choice("phase1", "catchup", {"all", "catchup"}) == "all";
  params.mean = p.choice("reduce", "sum", {"sum", "mean"}) == "mean";
  return std::make_unique<SparseX>(params);
}

}  // namespace kvilt
