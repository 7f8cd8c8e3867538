// policy/epic.cc: EPIC (LegoLink): the first k tokens of every piece are computed again; the choice needs no look.
// Source: arXiv:2410.15332, METHODS 3. A piece that was computed alone made its own first tokens attention sinks; behind other
// text they must not be. k = 16 is the paper's headline.
// Differs from the paper (docs/papers.md): a piece behind its own prefix is an exact hit here and costs nothing; no BOS is
// kept inside pieces; T - 1 is always computed.
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
    Plan plan;
    plan.prompt_len = layout.prompt_len;
    plan.stages = {uniform_stage(unite(layout.fresh(), normalize(heads)), config.L)};
    return plan;
  }

 private:
  const int k_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_epic(PolicyParams& p) {
  return std::make_unique<Epic>(p.integer("k,budget", 16, 0, 1 << 20));
}

}  // namespace kvilt
