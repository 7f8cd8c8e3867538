// plan/sparse_rule.h: which keys the rows of a prompt see, where they do not see all: a rule as data.
// Idea:       the rows of a block see whole columns and whole distances (plan/lines.h), which a few of them choose for
//             each layer and KV head, or which are fixed (A-shape). What is computed is a superset: a tile of rows sees
//             what any of them shows.
// Threads:    plain data.
// Not here:   the choice (plan/lines.h), attention along lines (forward/sparse_rows.h), the methods (policy/).
#pragma once

#include "plan/lines.h"

namespace kvilt {

// Lines are chosen for blocks of positions [n kSparseBlock, (n + 1) kSparseBlock), whole whatever the chunk.
inline constexpr int32_t kSparseBlock = 512;
inline constexpr int32_t kSparseTile = 64;  // positions whose rows see the same keys, but for causality

struct SparseRule {
  enum class By : uint8_t {
    kSample,  // the lines that `lines` chooses from sampled rows
    kFixed,   // columns [0, sink) and distances [0, window]
    kRandom,  // drawn for each block, layer and KV head: the control
  };
  By by = By::kSample;
  LineOptions lines;         // its tile is 1, or kSparseTile
  int32_t sampled = 32;      // rows of a block that look, its last one among them
  bool sample_last = false;  // they are its last ones; else drawn evenly
  int32_t sink = 128, window = 3968;
  double share = 0.5;        // kRandom: about that of the cells
  int32_t dense_layers = 0;  // the first layers, whose rows see all
  int32_t pooled = 0;  // > 0: keys that rows skip are seen as means over so many positions; a divisor of kSparseTile
  int32_t dense_last = 0;      // the prompt's last rows see all
  int32_t answer = INT32_MAX;  // so do rows from here on: they are of the answer, in a prompt that starts again
  uint64_t seed = 1;
};

}  // namespace kvilt
