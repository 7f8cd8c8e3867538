// plan/heavy_keys.h: how much attention the keys of a head have got so far, and which of them are out for good.
// Source:     H2O (arXiv:2306.14048): a key that is evicted does not come back, whatever it had.
// Invariants: keys that are in are known by their rank among these: a choice costs what they are, not what the text is.
//             A key is out once keep() has left it out; its sum counts in lost() from then on, and nowhere else.
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
  // A row's weights of the keys of [0, keys) that are in, by rank; one row at a time, so that their order is that of
  // rows.
  void add(int32_t keys, std::span<const float> weights);
  // By rank, of the keys of [0, keys) that are in: what a choice takes.
  std::vector<double> scores(int32_t keys);
  // What the keys had that are out, when they went.
  double lost() const { return lost_; }
  // Of the keys that are in only those of these ranks stay. Returns their positions. REQUIRES: ranks of scores().
  Runs keep(const Runs& ranks);

 private:
  void grow(int32_t keys);

  int32_t keys_ = 0;  // positions that were ever in
  Runs in_;
  std::vector<double> sums_;  // by rank
  double lost_ = 0;
};

}  // namespace kvilt
