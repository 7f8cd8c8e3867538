// plan/sparse_rule.h: which keys the rows of a prompt see, where they do not see all: a rule as data.
// Idea:       the rows of a block see whole columns and whole distances (plan/lines.h), which a few of them choose for
//             each layer and KV head, or which are fixed (A-shape). What is computed is a superset: a tile of rows sees
//             what any of them shows. Or each tile of rows sees blocks of keys (plan/blocks.h), by an estimate of what
//             these weigh. Heads may differ in it.
// Threads:    plain data.
// Not here:   the choice (plan/lines.h, plan/blocks.h), attention to it (forward/sparse_rows.h), the methods (policy/).
#pragma once

#include <memory>
#include <vector>

#include "plan/blocks.h"
#include "plan/lines.h"

namespace kvilt {

// Lines are chosen for blocks of positions [n kSparseBlock, (n + 1) kSparseBlock), whole whatever the chunk.
inline constexpr int32_t kSparseBlock = 512;
// Positions whose rows see the same keys, but for causality; a block of keys is as wide.
inline constexpr int32_t kSparseTile = 64;

// What the rows of a KV head see.
struct KeyPattern {
  enum class By : uint8_t {
    kSample,  // the lines that `lines` chooses from sampled rows; heads that `tau` is for, the blocks of `blocks`
    kBlocks,  // the blocks that `blocks` chooses
    kFixed,   // columns [0, sink) and distances [0, window]
    kRandom,  // drawn for each block, layer and KV head: the control
  };
  By by = By::kSample;
  LineOptions lines;  // its tile is 1, or kSparseTile
  BlockOptions blocks;
  // kSample: a head is estimated well by means, and chooses blocks, if what the sampled rows see of each block is less
  // than this far from what their mean query weighs the blocks' mean keys (shannon_distance()); 0: none is.
  double tau = 0;
  int32_t sink = 128, window = 3968;
  double share = 0.5;  // kRandom: about that of the cells
};

struct SparseRule : KeyPattern {  // of all heads, if `heads` is not there
  // layer * G + KV head.
  std::shared_ptr<const std::vector<KeyPattern>> heads;
  const KeyPattern& of(int head) const { return heads ? (*heads)[head] : *this; }

  int32_t sampled = 32;      // rows of a block that look, its last one among them
  bool sample_last = false;  // they are its last ones; else drawn evenly
  int32_t dense_layers = 0;  // the first layers, whose rows see all
  int32_t pooled = 0;  // > 0: keys that rows skip are seen as means over so many positions; a divisor of kSparseTile
  int32_t dense_last = 0;      // the prompt's last rows see all
  int32_t answer = INT32_MAX;  // so do rows from here on: they are of the answer, in a prompt that starts again
  uint64_t seed = 1;
};

}  // namespace kvilt
