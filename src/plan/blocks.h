// plan/blocks.h: sparse attention by blocks: which blocks of keys the rows of a tile see, by what each block weighs for
// them by an estimate. Blocks are as wide as tiles, so that tile n's own block is block n.
// Methods: MInference's block-sparse pattern (arXiv:2407.02490): so many of the heaviest blocks, by the mean query of
//          the tile and the mean keys of the blocks (kMeans). FlexPrefill's query-aware pattern (arXiv:2502.20766): by
//          the same means, the heaviest until they hold a share, of the tiles of a block of rows together; whether it
//          may be used says the Jensen-Shannon distance of such an estimate from attention itself. XAttention
//          (arXiv:2503.16428): sums along antidiagonals of stride x stride cells (kAntidiagonals), the heaviest of each
//          tile until they hold a share, block 0 among them.
// Groups:  the query heads of a KV head read the same keys: their weights are added before anything is chosen.
// Invariants: a tile's own block is always among them: no row sees nothing.
// Threads: pure; any thread.
// Cost:    choosing sorts the blocks of a tile, or of the tiles that choose together.
// Not here: the scores (forward/key_groups.h), attention over what is chosen (forward/sparse_rows.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/runs.h"

namespace kvilt {

enum class BlockScore : uint8_t { kMeans, kAntidiagonals };
struct BlockOptions {
  BlockScore score = BlockScore::kMeans;
  int32_t stride = 8;        // kAntidiagonals: a divisor of a block
  int32_t most = INT32_MAX;  // blocks of a tile, its own among them
  double mass = 1;           // the heaviest until they hold this share of the weights,
  int32_t least = 0;         // and of a tile at least so many
  bool first = false;        // block 0 is always taken
  bool together = false;     // `mass` is of all tiles that are given at once, not of each
};

// What the blocks 0 .. n weigh for the rows of tile n.
using BlockWeights = std::vector<double>;

// Adds the softmax of one row of scores of groups of keys, `per_block` of which are a block. What is not finite weighs
// nothing. The scores are overwritten. REQUIRES: no more groups than the blocks have.
void add_softmax(std::span<float> scores, int32_t per_block, std::span<double> weights);

// Whether tiles with so many blocks take all of them, whatever these weigh.
bool takes_all(const BlockOptions& options, int32_t blocks);

// The blocks that each tile sees, as runs of their numbers.
std::vector<Runs> choose_blocks(std::span<const BlockWeights> tiles, const BlockOptions& options);

// The root of the Jensen-Shannon divergence, with natural logarithms, of two lists of weights, each divided by its sum:
// 0 (alike) to sqrt(log 2), which is also what is said if one of them has no sum.
double shannon_distance(std::span<const double> a, std::span<const double> b);

}  // namespace kvilt
