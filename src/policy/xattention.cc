// policy/xattention.cc: XAttention: each tile of rows sees the blocks of keys that hold a share of the weight, by sums of
// scores along antidiagonals.
// Source: XAttention, arXiv:2503.16428 (docs/papers.md#sparse-prefill).
// Differs: blocks are of 64 positions, not 128. A KV head chooses, by the sums over its query heads. One threshold for
//          all heads: those that the paper finds for each on a calibration set are not here.
// Not here: the choice (plan/blocks.h), the sums (forward/key_groups.h).
#include "policy/sparse_prefill.h"

namespace kvilt {

std::unique_ptr<ReusePolicy> make_xattention(PolicyParams& p) {
  SparseRule rule;
  rule.by = SparseRule::By::kBlocks;
  rule.blocks.score = BlockScore::kAntidiagonals;
  rule.blocks.stride = p.integer("stride", 8, 1, kSparseTile);
  if (kSparseTile % rule.blocks.stride != 0) p.wrong("parameter 'stride' must be 1, 2, 4, 8, 16, 32 or 64");
  rule.blocks.mass = p.number("threshold,budget", 0.9, 0, 1);
  rule.blocks.first = true;
  take_shared(p, rule);
  return std::make_unique<SparsePrefill>(rule);
}

}  // namespace kvilt
