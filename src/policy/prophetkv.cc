// policy/prophetkv.cc: ProphetKV: the question's attention in all layers chooses the reused tokens to compute again.
// Source:  ProphetKV (arXiv:2602.02579), docs/papers.md#prophetkv.
// Idea:    stage I takes the question through all layers over the placed, unmodified KV; its attention to the context
//          (normalised over the context only) is averaged over layers, heads and rows. Stage II computes the r |reused|
//          highest tokens and the question again from the embeddings, in all layers.
// Differs: from the paper: other fresh runs are computed in both stages; a prompt that ends in a piece looks with its
//          last `tail` tokens.
#include "policy/question_stage.h"

namespace kvilt {
namespace {

class ProphetKV : public ReusePolicy {
 public:
  ProphetKV(double r, int tail, Estimator estimator) : r_(r), tail_(tail), estimator_(estimator) {}

  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Stage repair = uniform_stage({layout.after_prefix()}, config.L);
    repair.expected = r_;
    if (layout.pieces.empty()) return plan_for(layout, {repair});
    return plan_for(layout, {question_stage(layout, config, estimator_, tail_), repair});
  }

  void refine(const PromptLayout& layout, const ModelConfig&, int, std::span<const Probe> probes,
              Plan& plan) const override {
    plan.stages[1].sets[0] = always_and_highest(layout, tail_, probes[0].score, r_);
  }

 private:
  const double r_;
  const int tail_;
  const Estimator estimator_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_prophetkv(PolicyParams& p) {
  const double r = p.number("r,budget", 0.2, 0, 1);
  const int tail = p.integer("tail", 64, 1, 1 << 20);
  const bool values = p.flag("value_norm", false);
  return std::make_unique<ProphetKV>(r, tail, values ? Estimator::kColumnSumValueNorm : Estimator::kColumnSum);
}

}  // namespace kvilt
