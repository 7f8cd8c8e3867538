// policy/oracle.cc: a control that knows the full pass: everything is computed once and forgotten, then the r |reused|
// tokens that changed most (or that the question looks at, or both) are computed again over the placed rest. It shows
// what the best selection could do, and costs more than full: for tables, not for use.
// Source: docs/papers.md#controls.
#include <cmath>
#include <numeric>

#include "policy/question_stage.h"

namespace kvilt {
namespace {

class Oracle : public ReusePolicy {
 public:
  Oracle(double r, int tail, bool change, bool attention)
      : r_(r), tail_(tail), change_(change), attention_(attention) {}

  bool keeps_approximate() const override { return false; }
  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    const Runs computed{layout.after_prefix()};
    Plan plan = plan_for(layout);
    if (!layout.pieces.empty()) {
      Stage look = uniform_stage(computed, config.L);
      look.discard = true;
      ProbeSpec probe = question_stage(layout, config, Estimator::kColumnSumValueNorm, tail_).probes[0];
      look.probes.push_back(probe);
      probe.rows = computed;
      probe.key_end = -1;
      for (const Estimator e : {Estimator::kKeyChange, Estimator::kValueChange}) {
        probe.estimator = e;
        look.probes.push_back(probe);
      }
      plan.stages.push_back(look);
    }
    plan.stages.push_back(uniform_stage(computed, config.L));
    return plan;
  }

  void refine(const PromptLayout& layout, const ModelConfig&, int, std::span<const Probe> probes,
              Plan& plan) const override {
    const auto total = [](const Probe& probe) {
      return std::max(1e-30, std::accumulate(probe.score.begin(), probe.score.end(), 0.0));
    };
    const double k = total(probes[1]), v = total(probes[2]);
    std::vector<double> score(probes[0].score.size());
    for (size_t i = 0; i < score.size(); ++i) {
      const double change = std::sqrt(probes[1].score[i] / k + probes[2].score[i] / v);
      score[i] = (change_ ? change : 1.0) * (attention_ ? probes[0].score[i] : 1.0);
    }
    plan.stages[1].sets[0] = always_and_highest(layout, tail_, score, r_);
  }

 private:
  const double r_;
  const int tail_;
  const bool change_, attention_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_oracle(PolicyParams& p) {
  const double r = p.number("r,budget", 0.15, 0, 1);
  const int tail = p.integer("tail", 64, 1, 1 << 20);
  const std::string by = p.choice("by", "change", {"change", "attention", "both"});
  return std::make_unique<Oracle>(r, tail, by != "attention", by != "change");
}

}  // namespace kvilt
