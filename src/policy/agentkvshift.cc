// policy/agentkvshift.cc: AgentKVShift: a piece's keys and values move by one offset each, the mean change of some of its
// tokens.
// Source:  AgentKVShift (arXiv:2607.21604), docs/papers.md#agentkvshift; the nearest published method to `mend`.
// Idea:    layers up to check_layer run in full. There the tokens whose K and V moved furthest from their placed twins
//          become probes, half by K and half by V; later layers run for them and the fresh tokens only, and add the
//          probes' mean change, of K before its rotation and of V, to the piece's other tokens.
// Differs: the paper weighs the offset of a piece by how far it diverged, at most 1; here the weight is `scale`. Probes
//          of K and V are one set: both changes are known at each of them.
// Not here: the mean itself (plan/carry.h, kMean without shrinking).
#include <algorithm>

#include "policy/carry_groups.h"
#include "policy/question_stage.h"

namespace kvilt {
namespace {

constexpr float kNoShrinking = 1e-6f;  // the mean of n changes is n / (n + this) of itself

struct ShiftParams {
  double r;  // share of the reused tokens that are probes
  int check_layer, tail;
  float scale;
};

class AgentKVShift : public ReusePolicy {
 public:
  explicit AgentKVShift(const ShiftParams& params) : params_(params) {}

  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    const Runs computed{layout.after_prefix()};
    const int check = std::min(params_.check_layer, config.L - 1);
    Stage stage = uniform_stage(computed, config.L);
    if (!layout.pieces.empty() && check > 0) {
      stage.sets.push_back(computed);  // the probes and the fresh, once they are known
      std::fill(stage.write.begin() + check + 1, stage.write.end(), 1);
      stage.cuts = {check};
      stage.expected = params_.r;
      for (const Estimator by : {Estimator::kKeyChange, Estimator::kValueChange})
        stage.probes.push_back({.estimator = by, .layers = {check}, .rows = computed});
      Carry carry;
      carry.kernel = Carry::Kernel::kMean;
      carry.noise = kNoShrinking;
      carry.gain = false;
      carry.scale_k = carry.scale_v = params_.scale;
      carry.layer_begin = check + 1;
      carry.groups = carry_groups(layout.pieces, false);
      stage.carry = carry;
    }
    return plan_for(layout, {stage});
  }

  void refine(const PromptLayout& layout, const ModelConfig&, int, std::span<const Probe> probes,
              Plan& plan) const override {
    const Runs always = always_computed(layout, params_.tail), others = subtract(layout.reused(), always);
    const int64_t n = budget_of(layout, params_.r);
    const Runs by_key = top_positions(probes[0].score, others, n / 2);
    const Runs by_value = top_positions(probes[1].score, subtract(others, by_key), n - n / 2);
    plan.stages[0].sets[1] = unite(always, unite(by_key, by_value));
  }

 private:
  const ShiftParams params_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_agentkvshift(PolicyParams& p) {
  ShiftParams params;
  params.r = p.number("r,budget", 0.1, 0, 1);
  params.check_layer = p.integer("check_layer", 1, 1, 10000);
  params.tail = p.integer("tail", 64, 1, 1 << 20);
  params.scale = static_cast<float>(p.number("scale", 1, 0, 1));
  return std::make_unique<AgentKVShift>(params);
}

}  // namespace kvilt
