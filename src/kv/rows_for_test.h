// kv/rows_for_test.h: the small shape that the tests of this folder share, and rows that name their writer and place.
#pragma once

#include <vector>

#include "kv/page_store.h"
#include "tensor/rope.h"

namespace kvilt {

inline const KvShape kShape{3, 2, 4, 8, DType::kF32};

inline RopeConfig small_rope() {
  RopeConfig rope;
  rope.rotary_dim = 4;
  rope.inv_freq = {1.0, 0.1};
  return rope;
}

// A row whose first element names (who, layer, head, pos).
inline std::vector<float> row(int who, int layer, int32_t pos) {
  std::vector<float> out;
  for (int head = 0; head < kShape.G; ++head) {
    for (int e = 0; e < kShape.E; ++e)
      out.push_back(static_cast<float>(who * 1000000 + layer * 100000 + head * 10000 + pos * 10 + e));
  }
  return out;
}

}  // namespace kvilt
