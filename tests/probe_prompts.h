// tests/probe_prompts.h: prompts of random tokens for the probe model, for tests that compare runs with each other.
#pragma once

#include <initializer_list>
#include <random>
#include <vector>

#include "engine_harness.h"

namespace kvilt {

inline constexpr const char* kModel = "tests/data/models/probe-1M";

inline std::vector<int32_t> tokens(int n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (int32_t& id : out) id = static_cast<int32_t>(3 + rng() % 900);
  return out;
}

inline std::vector<int32_t> join(std::initializer_list<std::vector<int32_t>> parts) {
  std::vector<int32_t> out;
  for (const auto& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

}  // namespace kvilt
