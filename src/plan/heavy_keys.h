// plan/heavy_keys.h: how much attention the keys of a head have got so far, and which of them are out for good.
// Source:     H2O (arXiv:2306.14048): a key that is evicted does not come back, whatever it had.
// Invariants: a key is out once keep() has left it out; its sum counts in lost() from then on, and nowhere else.
// Threads:    one writer.
// Not here:   whose attention (forward/heavy_chooser.h), how many are kept (decode_rule.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/runs.h"

namespace kvilt {

// Of one KV head.
class HeavyKeys {
 public:
  // A row's weights of the keys at the positions of a run, added one row at a time, so that their order is that of rows.
  void add(int32_t begin, std::span<const float> weights);
  // By position, of [0, keys): what a choice takes; a key that is out comes behind all others.
  std::vector<double> scores(int32_t keys);
  // What the keys had that are out, when they went.
  double lost() const { return lost_; }
  // Of [0, keys) only these stay. REQUIRES: none of them is out.
  void keep(std::span<const Run> kept, int32_t keys);

 private:
  void grow(int64_t keys);

  std::vector<double> sums_;
  std::vector<uint8_t> out_;
  double lost_ = 0;
};

}  // namespace kvilt
