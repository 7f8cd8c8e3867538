// policy/naive.cc: position-independent reuse without repair: known pieces are placed, realigned, and trusted as they
// are.
// align=no leaves the keys at their old positions as well: what reuse without RoPE's realignment gives.
// Source: METHODS 3, 'Naive reuse (PIC)'. Fast and wrong where pieces depend on each other: the lower bound of quality.
#include "policy/policy.h"

namespace kvilt {
namespace {

class Naive : public ReusePolicy {
 public:
  explicit Naive(bool align) : align_(align) {}
  bool wants_realigned() const override { return align_; }
  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Plan plan;
    plan.prompt_len = layout.prompt_len;
    plan.stages = {uniform_stage(unite(layout.fresh(), Runs{layout.tail()}), config.L)};
    return plan;
  }

 private:
  const bool align_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_naive(PolicyParams& p) { return std::make_unique<Naive>(p.flag("align", true)); }

}  // namespace kvilt
