// policy/minference.cc: MInference's patterns: vertical-slash (`lines`), so many of the heaviest columns and distances by
// the last rows of each block; block-sparse (`blocks`), so many of the heaviest blocks for each tile by means.
// Source: MInference, arXiv:2407.02490 (docs/papers.md#sparse-prefill). Its third pattern, A-shape, is policy/ashape.cc.
// Differs: one pattern and size for all heads, no map from a profile; the last 64 rows are each block's, not the
//          prompt's, as the prompt is computed block by block; a tile's own block is always seen, among the others.
// Not here: the choice (plan/lines.h, plan/blocks.h).
#include "policy/sparse_prefill.h"

namespace kvilt {

std::unique_ptr<ReusePolicy> make_minference(PolicyParams& p) {
  SparseRule rule;
  if (p.choice("pattern", "lines", {"lines", "blocks"}) == "blocks") {
    rule.by = SparseRule::By::kBlocks;
    rule.blocks.most = p.integer("blocks", 100, 1, 1 << 24);
  } else {
    rule.lines.rule = LineRule::kCounts;
    rule.lines.columns = p.integer("columns", 1000, 0, 1 << 24);
    rule.lines.distances = p.integer("distances", 6096, 0, 1 << 24);
    rule.sampled = p.integer("rows", 64, 1, kMostSampled);
    rule.sample_last = true;
  }
  take_shared(p, rule);
  return std::make_unique<SparsePrefill>(rule);
}

}  // namespace kvilt
