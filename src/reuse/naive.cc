// reuse/naive.cc: position-independent reuse without repair: known pieces are placed, realigned, and trusted as they
// are.
// Source: METHODS 3, 'Naive reuse (PIC)'. Fast and wrong where pieces depend on each other: the lower bound of quality.
#include "reuse/policy.h"

namespace kvilt {
namespace {

class Naive : public ReusePolicy {
 public:
  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Plan plan;
    plan.prompt_len = layout.prompt_len;
    plan.stages = {uniform_stage(unite(layout.fresh(), Runs{layout.tail()}), config.L)};
    return plan;
  }
};

}  // namespace

std::unique_ptr<ReusePolicy> make_naive(PolicyParams&) { return std::make_unique<Naive>(); }

}  // namespace kvilt
