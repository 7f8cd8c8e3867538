// policy/flexprefill.cc: FlexPrefill: heads whose attention is near to an estimate by means of blocks choose blocks for
// each tile by it, all others columns and distances; both until they hold the share gamma.
// Source: FlexPrefill, arXiv:2502.20766 (docs/papers.md#sparse-prefill).
// Test:   the Jensen-Shannon distance of what the last rows see of each block from the softmax of their mean query times
//         the blocks' mean keys; below tau the head takes blocks.
// Differs: blocks are of 64 positions, not 128, and so many rows look; both are each block's of 512, as the prompt is
//          computed block by block. A KV head tests and chooses, by the sums over its query heads. By default no least
//          number of keys; the code has 1,024 (`least`).
// Not here: the choice (plan/blocks.h, plan/lines.h).
#include "policy/sparse_prefill.h"

namespace kvilt {

std::unique_ptr<ReusePolicy> make_flexprefill(PolicyParams& p) {
  SparseRule rule;
  const double gamma = p.number("gamma,budget", 0.9, 0, 1);
  rule.lines.rule = LineRule::kCoverage;
  rule.lines.mass = rule.blocks.mass = gamma;
  rule.lines.tile = p.choice("distances", "exact", {"tiles", "exact"}) == "tiles" ? kSparseTile : 1;
  rule.blocks.first = rule.blocks.together = true;
  // Of a tile's keys, and so of its blocks; of columns, and of distances.
  rule.lines.least = p.integer("least", 0, 0, 1 << 24);
  rule.blocks.least = (rule.lines.least + kSparseTile - 1) / kSparseTile;
  rule.tau = p.number("tau", 0.1, 0, 1);
  rule.sampled = p.integer("rows", kSparseTile, 1, kMostSampled);
  rule.sample_last = true;
  take_shared(p, rule);
  return std::make_unique<SparsePrefill>(rule);
}

}  // namespace kvilt
