// random_tokens.h: ids of a vocabulary, for the tests of the driver.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace kvilt {

inline std::vector<int32_t> tokens(int n, uint32_t seed, int vocab) {
  std::mt19937 rng(seed);
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (int32_t& id : out) id = static_cast<int32_t>(rng() % static_cast<uint32_t>(vocab));
  return out;
}

}  // namespace kvilt
