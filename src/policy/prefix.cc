// policy/prefix.cc: the prefix cache of today's engines: the longest exact prefix is reused, the rest computed. Exact.
// Source: vLLM (arXiv:2309.06180), but to the token, not to the block; docs/papers.md#full-prefix-naive.
#include "policy/policy.h"

namespace kvilt {
namespace {

class Prefix : public ReusePolicy {
 public:
  bool wants_pieces() const override { return false; }
  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    return plan_for(layout, {uniform_stage({layout.after_prefix()}, config.L)});
  }
};

}  // namespace

std::unique_ptr<ReusePolicy> make_prefix(PolicyParams&) { return std::make_unique<Prefix>(); }

}  // namespace kvilt
