// policy/full.cc: full recompute, the oracle every method is compared with: nothing is looked up, everything is written.
// Source: METHODS 3.
#include "policy/policy.h"

namespace kvilt {
namespace {

class Full : public ReusePolicy {
 public:
  bool wants_prefix() const override { return false; }
  bool wants_segments() const override { return false; }
  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Plan plan;
    plan.prompt_len = layout.prompt_len;
    plan.stages = {uniform_stage({{0, layout.prompt_len}}, config.L)};
    return plan;
  }
};

}  // namespace

std::unique_ptr<ReusePolicy> make_full(PolicyParams&) { return std::make_unique<Full>(); }

}  // namespace kvilt
