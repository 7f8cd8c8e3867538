// policy/random.cc: a control: r |reused| tokens drawn evenly are computed again. A selection must beat it.
// Source: docs/papers.md#controls.
#include <random>

#include "policy/question_stage.h"

namespace kvilt {
namespace {

class Random : public ReusePolicy {
 public:
  Random(double r, int seed, int tail) : r_(r), seed_(seed), tail_(tail) {}

  bool keeps_approximate() const override { return false; }
  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    std::mt19937 rng(static_cast<uint32_t>(seed_));  // its sequence is fixed by the standard
    std::vector<double> score(layout.prompt_len);
    for (double& s : score) s = rng();
    return plan_for(layout, {uniform_stage(always_and_highest(layout, tail_, score, r_), config.L)});
  }

 private:
  const double r_;
  const int seed_, tail_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_random(PolicyParams& p) {
  const double r = p.number("r,budget", 0.15, 0, 1);
  const int seed = p.integer("seed", 1, 0, 1 << 30);
  return std::make_unique<Random>(r, seed, p.integer("tail", 64, 1, 1 << 20));
}

}  // namespace kvilt
