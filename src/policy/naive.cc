// policy/naive.cc: position-independent reuse without repair: known pieces are placed, realigned, and trusted as they
// are. Fast, and wrong where pieces depend on each other: the lower bound of quality. align=no leaves the keys rotated
// for their old positions: what reuse without realignment would give.
// Source: position-independent caching, as EPIC (arXiv:2410.15332) describes it; docs/papers.md#full-prefix-naive.
#include "policy/policy.h"

namespace kvilt {
namespace {

class Naive : public ReusePolicy {
 public:
  explicit Naive(bool align) : align_(align) {}
  bool wants_realigned() const override { return align_; }
  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    return plan_for(layout, {uniform_stage(unite(layout.fresh(), Runs{layout.tail()}), config.L)});
  }

 private:
  const bool align_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_naive(PolicyParams& p) { return std::make_unique<Naive>(p.flag("align", true)); }

}  // namespace kvilt
