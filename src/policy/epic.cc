// policy/epic.cc: EPIC (LegoLink): the first k tokens of every piece are computed again; the choice needs no probe.
// Source:  EPIC (arXiv:2410.15332), docs/papers.md#epic.
// Idea:    a piece that was computed by itself made its own first tokens attention sinks; after other text they must
//          not be. k = 16 is the value that the paper recommends.
// Differs: from the paper: a piece after its own prefix is an exact hit here and costs nothing; no BOS is kept inside
//          pieces; T - 1 is always computed.
#include <algorithm>

#include "policy/policy.h"

namespace kvilt {
namespace {

class Epic : public ReusePolicy {
 public:
  explicit Epic(int k) : k_(k) {}

  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Runs heads{layout.tail()};
    for (const Run& piece : layout.pieces) heads.push_back({piece.begin, std::min(piece.end, piece.begin + k_)});
    if (layout.question >= 0 && layout.question < layout.prompt_len)  // all of it, though it may be known
      heads.push_back({std::max(layout.question, layout.prefix), layout.prompt_len});
    return plan_for(layout, {uniform_stage(unite(layout.fresh(), normalize(heads)), config.L)});
  }

 private:
  const int k_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_epic(PolicyParams& p) {
  return std::make_unique<Epic>(p.integer("k,budget", 16, 0, 1 << 20));
}

}  // namespace kvilt
