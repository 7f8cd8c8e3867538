// policy/full.cc: full recompute, with which every method is compared: nothing is looked up, everything is computed.
// Source: docs/papers.md#full-prefix-naive.
#include "policy/policy.h"

namespace kvilt {
namespace {

class Full : public ReusePolicy {
 public:
  bool wants_prefix() const override { return false; }
  bool wants_pieces() const override { return false; }
  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    return plan_for(layout, {uniform_stage({{0, layout.prompt_len}}, config.L)});
  }
};

}  // namespace

std::unique_ptr<ReusePolicy> make_full(PolicyParams&) { return std::make_unique<Full>(); }

}  // namespace kvilt
