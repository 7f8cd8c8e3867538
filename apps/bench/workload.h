// apps/bench/workload.h: what generated streams of requests are made of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kvilt/request.h"

namespace kvilt {

struct Workload {
  std::string name;
  std::vector<Prompt> prompts;
};

// The same key gives the same text, whoever asks.
class Texts {
 public:
  Texts(int vocab, uint64_t seed) : vocab_(vocab), seed_(seed) {}
  std::vector<int32_t> text(uint64_t key, int tokens) const {
    std::mt19937_64 rng(seed_ * 1000003 + key);
    std::vector<int32_t> out(static_cast<size_t>(tokens));
    const int low = std::min(256, vocab_ / 4), high = std::min(50000, vocab_ * 3 / 4);  // no special tokens
    for (int32_t& id : out) id = low + static_cast<int32_t>(rng() % static_cast<uint64_t>(high - low));
    return out;
  }

 private:
  const int vocab_;
  const uint64_t seed_;
};

inline void append(Prompt& prompt, const std::vector<int32_t>& ids, bool marked) {
  if (marked) return prompt.add_marked(ids);
  prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
}

}  // namespace kvilt
