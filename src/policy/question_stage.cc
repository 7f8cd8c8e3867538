#include "policy/question_stage.h"

#include <cmath>
#include <numeric>

namespace kvilt {

Runs always_computed(const PromptLayout& layout, int32_t tail) {
  return unite(layout.fresh(), Runs{layout.suffix(tail)});
}

Stage question_stage(const PromptLayout& layout, const ModelConfig& config, Estimator estimator, int32_t tail) {
  Stage stage = uniform_stage(always_computed(layout, tail), config.L);
  ProbeSpec probe;
  probe.estimator = estimator;
  probe.layers.resize(config.L);
  std::iota(probe.layers.begin(), probe.layers.end(), 0);
  probe.rows = {layout.suffix(tail)};
  probe.key_end = probe.rows[0].begin;
  stage.probes = {probe};
  return stage;
}

int64_t budget_of(const PromptLayout& layout, double share) { return budget_of(layout.reused(), share); }

int64_t budget_of(const Runs& text, double share) {
  return static_cast<int64_t>(std::floor(share * static_cast<double>(count(text)) + 1e-9));
}

Runs always_and_highest(const PromptLayout& layout, int32_t tail, std::span<const double> score, double r) {
  const Runs always = always_computed(layout, tail);
  return unite(always, top_positions(score, subtract(layout.reused(), always), budget_of(layout, r)));
}

}  // namespace kvilt
