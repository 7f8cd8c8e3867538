// policy/prefix.cc: the prefix cache, as engines of today have it: the longest exact prefix stands, the rest is
// computed. Exact.
// Source: METHODS 3 (vLLM's automatic prefix caching), though token-granular.
#include "policy/policy.h"

namespace kvilt {
namespace {

class Prefix : public ReusePolicy {
 public:
  bool wants_segments() const override { return false; }
  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Plan plan;
    plan.prompt_len = layout.prompt_len;
    plan.stages = {uniform_stage({{layout.prefix, layout.prompt_len}}, config.L)};
    return plan;
  }
};

}  // namespace

std::unique_ptr<ReusePolicy> make_prefix(PolicyParams&) { return std::make_unique<Prefix>(); }

}  // namespace kvilt
