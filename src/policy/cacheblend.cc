// policy/cacheblend.cc: CacheBlend: the tokens that change most at an early layer are computed again in all later ones.
// Source:  CacheBlend (arXiv:2405.16444), docs/papers.md#cacheblend.
// Idea:    layers up to check_layer run in full; there the r |reused| tokens whose V (in LMCache: K) moved furthest
//          from its placed twin are chosen, and the layers after it run only for them and the fresh tokens.
// Differs: from the paper and its code: one check layer, no gradual filtering (no public code has it); the suffix and
//          exact prefix hits are no candidates; masks go by position.
#include <algorithm>

#include "policy/question_stage.h"

namespace kvilt {
namespace {

class CacheBlend : public ReusePolicy {
 public:
  CacheBlend(double r, int check_layer, int tail, Estimator measure)
      : r_(r), check_layer_(check_layer), tail_(tail), measure_(measure) {}

  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    const Runs computed{layout.after_prefix()};
    const int check = std::min(check_layer_, config.L - 1);
    Stage stage = uniform_stage(computed, config.L);
    if (!layout.pieces.empty() && check > 0) {
      stage.sets.push_back(computed);  // the chosen, once they are known
      std::fill(stage.write.begin() + check + 1, stage.write.end(), 1);
      stage.cuts = {check};
      stage.expected = r_;
      stage.probes = {{.estimator = measure_, .layers = {check}, .rows = computed}};
    }
    return plan_for(layout, {stage});
  }

  void refine(const PromptLayout& layout, const ModelConfig&, int, std::span<const Probe> probes,
              Plan& plan) const override {
    plan.stages[0].sets[1] = always_and_highest(layout, tail_, probes[0].score, r_);
  }

 private:
  const double r_;
  const int check_layer_, tail_;
  const Estimator measure_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_cacheblend(PolicyParams& p) {
  const double r = p.number("r,budget", 0.15, 0, 1);
  const int check_layer = p.integer("check_layer", 1, 1, 10000);
  const int tail = p.integer("tail", 64, 1, 1 << 20);
  const bool keys = p.choice("measure", "v", {"v", "k"}) == "k";
  return std::make_unique<CacheBlend>(r, check_layer, tail, keys ? Estimator::kKeyChange : Estimator::kValueChange);
}

}  // namespace kvilt
