// sched/near_policy_for_test.h: a policy whose every head sees the last eight positions only.
#pragma once

#include "policy/policy.h"

namespace kvilt {

class Near : public ReusePolicy {
  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Plan plan;
    plan.prompt_len = layout.prompt_len;
    plan.stages = {uniform_stage(layout.fresh(), config.L)};
    plan.views = {{0, 8, 0}};
    return plan;
  }
};

}  // namespace kvilt
