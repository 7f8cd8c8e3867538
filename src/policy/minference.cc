// policy/minference.cc: MInference's patterns: vertical-slash (`lines`), so many of the heaviest columns and distances by
// the last rows of each block; block-sparse (`blocks`), so many of the heaviest blocks for each tile by means; or those
// of a map, which says for each KV head which of these, or A-shape.
// Source: MInference, arXiv:2407.02490 (docs/papers.md#sparse-prefill).
// Differs: a map is of KV heads, not query heads, whose attention together chooses; the last 64 rows are each block's,
//          not the prompt's, as the prompt is computed block by block; a tile's own block is always seen, among the
//          others.
// Not here: the rules of patterns (plan/head_patterns.h), the choice (plan/lines.h, plan/blocks.h), maps as files
//          (model/sparse_map.h).
#include "plan/head_patterns.h"
#include "policy/sparse_prefill.h"

namespace kvilt {
namespace {

HeadPattern take_pattern(PolicyParams& p, const std::string& name) {
  HeadPattern out;
  if (name == "blocks") {
    out.is = HeadPattern::Is::kBlocks;
    out.blocks = p.integer("blocks", out.blocks, 1, 1 << 24);
  } else {
    out.columns = p.integer("columns", out.columns, 0, 1 << 24);
    out.distances = p.integer("distances", out.distances, 0, 1 << 24);
  }
  return out;
}

}  // namespace

std::unique_ptr<ReusePolicy> make_minference(PolicyParams& p) {
  const bool named = p.given("map");
  const std::shared_ptr<const SparseMap> map = p.sparse_map("map");
  const std::string pattern = p.choice("pattern", map ? "map" : "lines", {"lines", "blocks", "map"});
  SparseRule rule;
  if (pattern == "map") {
    if (map) rule = rule_of(*map);
    if (!map) p.wrong("it needs a sparse map: start with --sparse-map FILE (kvilt profile sparse makes one)");
  } else {
    if (named) p.wrong("a map says each head's pattern: leave 'pattern' out");
    rule = rule_of(take_pattern(p, pattern));
  }
  if (rule.heads || rule.by == KeyPattern::By::kSample) rule.sampled = p.integer("rows", kLookingRows, 1, kMostSampled);
  take_shared(p, rule);
  return std::make_unique<SparsePrefill>(rule);
}

}  // namespace kvilt
