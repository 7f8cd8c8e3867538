// policy/plans_for_test.h: a small prompt, policies by name, and plans that are checked; for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "policy/policy.h"

namespace kvilt {

inline ModelConfig config_of(int L) {
  ModelConfig config;
  config.L = L;
  config.G = 1;
  return config;
}

// 0-3 exact prefix, 4-9 and 10-15 two pieces, 16-19 fresh.
inline PromptLayout layout() { return {20, 4, {{4, 10}, {10, 16}}}; }

inline std::unique_ptr<ReusePolicy> policy(const std::string& name, std::map<std::string, std::string> params = {}) {
  auto made = make_policy(name, params);
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return std::move(made).value();
}

inline Plan checked_plan(const ReusePolicy& policy, const PromptLayout& layout, const ModelConfig& config) {
  const Plan plan = policy.plan(layout, config);
  const auto status = validate(plan, config, unite(Runs{{0, std::max(1, layout.prefix)}}, layout.reused()));
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
  return plan;
}

// What a probe saw of 20 positions: 0 but at these.
inline std::vector<Probe> scores(std::vector<std::pair<int, double>> high) {
  Probe probe;
  probe.score.assign(20, 0);
  for (const auto& [pos, score] : high) probe.score[pos] = score;
  return {probe};
}

}  // namespace kvilt
