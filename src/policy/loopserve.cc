// policy/loopserve.cc: LoopServe's prefill: each block of the prompt sees the columns and distances that hold a share
// of its attention, chosen anew for each layer and KV head by some of its rows.
// Source: LoopServe, arXiv:2507.13681 (docs/papers.md#sparse-prefill); its decode is `decode=loopserve`.
// Rules:  rule=printed is the paper's greedy choice, which stalls below its aim and then takes all lines; shortest takes
//         the same lines in the order of mass per cell until they hold `alpha`; threshold is CRISP's; coverage is
//         FlexPrefill's vertical-slash branch. random is the control: lines that nobody looked for.
// Cost:   attention of the chosen cells; of `rows` rows in 512 over all keys, and q k once more.
// Not here: the choice (plan/lines.h).
#include "policy/sparse_prefill.h"

namespace kvilt {

std::unique_ptr<ReusePolicy> make_loopserve(PolicyParams& p) {
  SparseRule rule;
  const std::string word = p.choice("rule", "shortest", {"shortest", "printed", "threshold", "coverage", "random"});
  rule.lines.rule = word == "printed"     ? LineRule::kPrinted
                    : word == "threshold" ? LineRule::kThreshold
                    : word == "coverage"  ? LineRule::kCoverage
                                          : LineRule::kShortest;
  const bool tiles =
      p.choice("distances", word == "shortest" || word == "random" ? "tiles" : "exact", {"tiles", "exact"}) == "tiles";
  if (tiles && rule.lines.rule == LineRule::kPrinted) p.wrong("rule=printed goes with distances=exact");
  rule.lines.tile = tiles ? kSparseTile : 1;
  if (word == "random") {
    rule.by = SparseRule::By::kRandom;
    rule.share = p.number("share", 0.5, 0, 1);
  } else {
    if (word == "threshold") {
      rule.lines.threshold = p.number("threshold", 1, 0, 1000);
    } else {
      rule.lines.mass = p.number("alpha,budget", 0.99, 0, 1);
    }
    rule.sampled = p.integer("rows", 16, 1, kMostSampled);
    rule.sample_last = p.choice("sample", "random", {"random", "last"}) == "last";
  }
  rule.dense_last = p.integer("dense_last", 0, 0, 1 << 24);
  take_shared(p, rule);
  return std::make_unique<SparsePrefill>(rule);
}

}  // namespace kvilt
