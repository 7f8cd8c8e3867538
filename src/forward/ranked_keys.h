// forward/ranked_keys.h: a set of positions as keys that a kernel reads by their rank: the n-th key of the set is at n.
// Idea:       causal order is that of positions, so a row that sees the keys of the set up to its own position sees the
//             ranks up to that key's. A set of B keys is B / 64 full blocks, however far apart they lie, and kernels
//             know nothing of sets. All positions have themselves for ranks: that is the dense pass to the bit.
// Invariants: keys are read where they lie; they must not move while this lives.
// Cost:       32 bytes for each run of keys that is together in memory, and 8 for each run of positions.
#pragma once

#include <span>
#include <vector>

#include "kv/page_table.h"

namespace kvilt {

class RankedKeys {
 public:
  void clear() {
    spans_.clear();
    positions_.clear();
    size_ = 0;
  }
  // The next ranks. REQUIRES: positions after those that are there, in order; each has its K and V at (layer, head).
  void append(const PageTable& kv, int layer, int head, std::span<const Run> positions);
  // These positions and no others. Those that were there are taken over: asking the table where a key lies, one by one
  // and from memory, is most of what a set costs, and the sets of two rows share most keys. REQUIRES: positions
  // are normal; each has its K and V, those that were there where they lay.
  void replace(const PageTable& kv, int layer, int head, std::span<const Run> positions);

  int32_t size() const { return size_; }
  const Runs& positions() const { return positions_; }
  std::span<const KvSpan> spans() const { return spans_; }

 private:
  std::vector<KvSpan> spans_;
  Runs positions_;
  int32_t size_ = 0;
};

}  // namespace kvilt
