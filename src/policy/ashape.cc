// policy/ashape.cc: A-shape: every row sees the first positions and the nearest ones; with `last`, Tri-shape: the
// prompt's last rows see all; with `dense_layers` too, TriangleMix: so do all rows of the first layers.
// Source: MInference's baselines (arXiv:2407.02490), SCBench (arXiv:2412.10319), TriangleMix (arXiv:2507.21526);
//         docs/papers.md#sparse-prefill.
// Not here: attention along lines (forward/sparse_rows.h).
#include "policy/sparse_prefill.h"

namespace kvilt {

std::unique_ptr<ReusePolicy> make_ashape(PolicyParams& p) {
  SparseRule rule;
  rule.by = SparseRule::By::kFixed;
  rule.sink = p.integer("sink", 128, 0, 1 << 24);
  rule.window = p.integer("window", 3968, 0, 1 << 24);
  rule.dense_last = p.integer("last", 0, 0, 1 << 24);
  take_shared(p, rule);
  return std::make_unique<SparsePrefill>(rule);
}

}  // namespace kvilt
