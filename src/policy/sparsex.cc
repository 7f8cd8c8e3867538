// policy/sparsex.cc: SparseX: the fresh tokens' attention at one layer chooses the reused tokens to compute again.
// Source:  SparseX (arXiv:2606.01751), Algorithm 1 and section 3.4. docs/papers.md#sparsex has the parameters, our
//          readings of the paper, and the study behind the defaults.
// Idea:    computed in the end is R, the union of
//            active    the fresh tokens (and the prompt's last `tail` tokens, if it ends in a piece),
//            top k     the k |reused| other tokens with the highest column sums of the active rows' attention
//                      (docs/math/column_sums.md),
//            border    b tokens on both sides of every active run.
// Plans:   layer c = max(0, l_star - 1) chooses (pictures: docs/design/plan.md#example-sparsex-on-24-tokens).
//            phase1=catchup   Two stages. The active rows run through the layers < c and look at c; then R starts again
//                             from the embeddings. The default: it chooses as well as `all`, and costs less.
//            phase1=all       One stage. All rows run through the layers < c, the active ones look at c, and only
//                             the rows of R go on: the paper's hybrid.
//            c = 0            As catchup, without a layer before the look: layer 0's keys need no context. The paper's
//                             variant without hybrid.
// Differs: from the paper: the tail joins before the probe; the top k are drawn from reused tokens only.
#include <algorithm>
#include <cmath>

#include "policy/policy.h"

namespace kvilt {
namespace {

struct SparseXParams {
  double k;    // share of the reused tokens; the paper gives none
  int l_star;  // -1: 15 % of the layers
  int b;       // tokens of the border on each side of an active run
  int tail;    // tokens of the last piece that are active when the prompt ends in it
  bool all;    // phase1
  bool mean;   // score by the mean over the rows that see a key, instead of the sum
};

class SparseX : public ReusePolicy {
 public:
  explicit SparseX(const SparseXParams& params) : params_(params) {}

  // The sets that refine() will choose hold everything until then: a plan is valid before refine() and after.
  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    const Runs everything{layout.after_prefix()};
    if (layout.pieces.empty()) return plan_for(layout, {uniform_stage(everything, config.L)});
    const Runs active = active_rows(layout);
    const int cut = cut_layer(config);
    const bool hybrid = params_.all && cut > 0;
    Stage look = hybrid ? uniform_stage(everything, config.L) : uniform_stage(active, cut);
    look.cuts = {cut};
    look.probes = {{Estimator::kColumnSum, {cut}, active}};
    if (!hybrid) {
      Stage chosen = uniform_stage(everything, config.L);
      chosen.expected = params_.k;
      return plan_for(layout, {look, chosen});
    }
    look.expected = params_.k;
    look.sets.push_back(everything);
    std::fill(look.write.begin() + cut + 1, look.write.end(), 1);  // the layers after the cut write the second set
    return plan_for(layout, {look});
  }

  void refine(const PromptLayout& layout, const ModelConfig& config, int stage, std::span<const Probe> probes,
              Plan& plan) const override {
    const Runs reused = layout.reused(), active = active_rows(layout);
    std::vector<double> score = probes[0].score;
    if (params_.mean) divide_by_rows(active, score);
    const auto n = static_cast<int64_t>(std::ceil(params_.k * static_cast<double>(count(reused)) - 1e-9));
    const Runs top = top_positions(score, subtract(reused, active), n);
    const Runs with_border = dilate(active, params_.b, layout.after_prefix());
    plan.stages.back().sets.back() = unite(top, with_border);
  }

 private:
  int cut_layer(const ModelConfig& config) const {
    const int l_star = params_.l_star >= 0 ? params_.l_star : static_cast<int>(std::lround(0.15 * config.L));
    return std::clamp(l_star - 1, 0, config.L - 1);
  }

  Runs active_rows(const PromptLayout& layout) const {
    const Runs fresh = layout.fresh();
    if (contains(fresh, layout.prompt_len - 1)) return fresh;
    const int32_t begin = std::max(layout.pieces.back().begin, layout.prompt_len - std::max(1, params_.tail));
    return unite(fresh, Runs{{begin, layout.prompt_len}});
  }

  // Column sums favour early keys, which more rows see.
  static void divide_by_rows(const Runs& rows, std::vector<double>& score) {
    int64_t before = 0;  // rows at positions < pos, which do not see the key at pos
    size_t i = 0;
    const int64_t all = count(rows);
    for (int32_t pos = 0; pos < static_cast<int32_t>(score.size()); ++pos) {
      while (i < rows.size() && rows[i].end <= pos) ++i;
      score[pos] /= static_cast<double>(std::max<int64_t>(1, all - before));
      if (i < rows.size() && rows[i].begin <= pos) ++before;
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
