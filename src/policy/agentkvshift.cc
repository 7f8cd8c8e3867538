// policy/agentkvshift.cc: AgentKVShift: a piece's keys and values move by one offset each, the mean change of some of its
// tokens.
// Source:  AgentKVShift (arXiv:2607.21604), docs/papers.md#agentkvshift; the nearest published method to `mend`.
// Idea:    layers up to check_layer run in full. There the tokens of each piece whose K and V moved furthest from their
//          placed twins become probes, half by K and half by V; later layers run for them and the fresh tokens only.
//          The probes' mean change, of K before its rotation and of V, is added to the piece's other tokens j, each
//          times min(d_j, 1): d_j is how far the token itself moved at the check layer, its K or its V.
// Differs: probes of K and V are one set, and together r of the piece: both changes are known at each of them.
// Not here: the mean itself (plan/carry.h, kMean without shrinking).
#include <algorithm>
#include <cmath>

#include "policy/carry_groups.h"
#include "policy/question_stage.h"

namespace kvilt {
namespace {

constexpr float kNoShrinking = 1e-6f;  // the mean of n changes is n / (n + this) of itself

struct ShiftParams {
  double r;  // share of the reused tokens that are probes
  int check_layer, tail;
  float scale;
  bool by_divergence;  // the weight of a token is min(d, 1), else 1
  bool per_piece;      // r of each piece, else of all of them together
};

// min(d, 1) by position; a distance that is no number counts as far.
std::vector<float> weights_of(const Probe& squared_distance) {
  std::vector<float> out;
  out.reserve(squared_distance.score.size());
  for (const double square : squared_distance.score)
    out.push_back(static_cast<float>(std::min(1.0, std::sqrt(square))));
  return out;
}

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
    Runs& computed = plan.stages[0].sets[1];
    computed = always;
    if (params_.per_piece) {
      for (const Run& piece : layout.pieces) {
        const auto n = static_cast<int64_t>(std::ceil(params_.r * piece.size() - 1e-9));
        computed = unite(computed, most_moved(probes, intersect(others, Runs{piece}), n));
      }
    } else {
      computed = unite(computed, most_moved(probes, others, budget_of(layout, params_.r)));
    }
    if (!params_.by_divergence) return;
    plan.stages[0].carry->share_k = weights_of(probes[0]);
    plan.stages[0].carry->share_v = weights_of(probes[1]);
  }

 private:
  static Runs most_moved(std::span<const Probe> probes, const Runs& candidates, int64_t n) {
    const Runs by_key = top_positions(probes[0].score, candidates, n / 2);
    return unite(by_key, top_positions(probes[1].score, subtract(candidates, by_key), n - n / 2));
  }

  const ShiftParams params_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_agentkvshift(PolicyParams& p) {
  ShiftParams params;
  params.r = p.number("r,budget", 0.1, 0, 1);
  params.check_layer = p.integer("check_layer", 1, 1, 10000);
  params.tail = p.integer("tail", 64, 1, 1 << 20);
  params.scale = static_cast<float>(p.number("scale", 1, 0, 1));
  params.by_divergence = p.choice("weight", "divergence", {"divergence", "one"}) == "divergence";
  params.per_piece = p.choice("probes", "piece", {"piece", "prompt"}) == "piece";
  return std::make_unique<AgentKVShift>(params);
}

}  // namespace kvilt
