// policy/sparse_prefill.h: a prompt computed whole behind its exact prefix, whose rows see few keys: what the methods of
// sparse prefill share. They differ in the rule (plan/sparse_rule.h) and its parameters.
// Not here: the choice of keys (plan/lines.h), attention along them (forward/sparse_rows.h).
#pragma once

#include "policy/policy.h"

namespace kvilt {

// Rows of a block that look: their weights are a float a key and row, for every KV head at once.
inline constexpr int kMostSampled = 128;

// Whether keys are drawn, or rows that look.
inline bool draws(const SparseRule& rule) {
  return rule.by == SparseRule::By::kRandom || (rule.by == SparseRule::By::kSample && !rule.sample_last);
}

// Parameters that all of them have. REQUIRES: the rest of the rule is what the request wants.
inline void take_shared(PolicyParams& p, SparseRule& rule) {
  rule.dense_layers = p.integer("dense_layers", 0, 0, 1 << 20);
  rule.pooled = p.integer("pooled", 0, 0, kSparseTile);
  if (rule.pooled > 0 && kSparseTile % rule.pooled != 0)
    p.wrong("parameter 'pooled' must be 0, 1, 2, 4, 8, 16, 32 or 64");
  rule.seed = static_cast<uint64_t>(p.integer("seed", 1, 0, 1 << 24));
  if (!draws(rule)) p.without_effect("seed");
}

class SparsePrefill : public ReusePolicy {
 public:
  explicit SparsePrefill(const SparseRule& rule) : rule_(rule) {}
  bool wants_pieces() const override { return false; }
  bool keeps_chain() const override { return true; }  // a dialogue's next turn goes on from it
  int32_t chooses_by() const override { return kSparseBlock; }
  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Plan out = plan_for(layout, {uniform_stage({layout.after_prefix()}, config.L)});
    out.sparse = rule_;
    if (layout.answer >= 0) out.sparse->answer = layout.answer;
    return out;
  }

 private:
  const SparseRule rule_;
};

}  // namespace kvilt
