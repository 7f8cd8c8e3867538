// policy/relaxkv.cc: RelaxKV: in every layer the question chooses the tokens that it reads; these are computed again, and
// read nothing that is stale.
// Source:  RelaxKV (arXiv:2609.33503), docs/papers.md#relaxkv: of its text only digests could be read.
// Stages:  1. as ProphetKV's, but each layer's attention counts for that layer: its anchors are the k highest tokens.
//          2. A layer's anchors need their states, so the layers below compute them too (the closure): layer l computes
//             the anchors of l and of all deeper layers. k is the largest at which that is r of the reused tokens, as a
//             mean over the layers.
// Reads:   recomputed rows see the prefix, what is computed at any layer, and their own piece (reads=piece) or not
//          (reads=anchors). The question's rows and the answer's see everything.
// Differs: k is the same in all layers.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "policy/piece_sights.h"
#include "policy/question_stage.h"

namespace kvilt {
namespace {

struct RelaxParams {
  double r;
  int tail;
  RowsRead read;
};

class RelaxKV : public ReusePolicy {
 public:
  explicit RelaxKV(const RelaxParams& params) : params_(params) {}

  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Stage repair = uniform_stage({layout.after_prefix()}, config.L);
    if (layout.pieces.empty()) return plan_for(layout, {repair});
    repair.expected = params_.r;
    Stage look = question_stage(layout, config, Estimator::kColumnSum, params_.tail);
    const ProbeSpec all = look.probes[0];
    look.probes.assign(static_cast<size_t>(config.L), all);
    for (int l = 0; l < config.L; ++l) look.probes[l].layers = {l};
    return plan_for(layout, {look, repair});
  }

  void refine(const PromptLayout& layout, const ModelConfig& config, int, std::span<const Probe> probes,
              Plan& plan) const override {
    const Runs always = always_computed(layout, params_.tail), others = subtract(layout.reused(), always);
    const int64_t budget = budget_of(layout, params_.r) * config.L;
    std::vector<Runs> sets = closure(probes, others, largest(probes, others, budget));
    Stage& repair = plan.stages.back();
    repair.sights = piece_sights(layout, sets[0], always, params_.read);
    for (Runs& set : sets) set = unite(set, always);
    sets.push_back(sets.back());
    repair.sets = std::move(sets);
    std::iota(repair.write.begin(), repair.write.end(), 0);
  }

 private:
  // By layer, the k highest tokens of it and of each deeper one.
  static std::vector<Runs> closure(std::span<const Probe> probes, const Runs& others, int64_t k) {
    std::vector<Runs> out(probes.size());
    Runs deeper;
    for (size_t l = probes.size(); l-- > 0;) out[l] = deeper = unite(deeper, top_positions(probes[l].score, others, k));
    return out;
  }

  // The largest k whose closure has at most `budget` tokens, all layers together. A layer computes a token if its rank
  // there or in a deeper layer is below k: so each layer is ranked once, and the lowest ranks so far are counted.
  static int64_t largest(std::span<const Probe> probes, const Runs& others, int64_t budget) {
    const std::vector<int32_t> at = positions(others);
    std::vector<int32_t> order(at.size()), lowest(at.size(), static_cast<int32_t>(at.size()));
    std::vector<int64_t> of_rank(at.size(), 0);  // tokens, all layers together
    for (size_t l = probes.size(); l-- > 0;) {
      const auto score = [&](int32_t i) {  // one that is no number comes last, as in top_positions()
        const double of = probes[l].score[at[i]];
        return std::isnan(of) ? -HUGE_VAL : of;
      };
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return score(a) > score(b); });
      for (size_t rank = 0; rank < order.size(); ++rank) {
        int32_t& low = lowest[order[rank]];
        low = std::min(low, static_cast<int32_t>(rank));
        ++of_rank[low];
      }
    }
    int64_t k = 0;
    while (k < std::ssize(of_rank) && of_rank[k] <= budget) budget -= of_rank[k++];
    return k;
  }

  const RelaxParams params_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_relaxkv(PolicyParams& p) {
  RelaxParams params;
  params.r = p.number("r,budget", 0.15, 0, 1);
  params.tail = p.integer("tail", 64, 1, 1 << 20);
  params.read =
      p.choice("reads", "piece", {"piece", "anchors"}) == "piece" ? RowsRead::kOwnPiece : RowsRead::kRecomputed;
  return std::make_unique<RelaxKV>(params);
}

}  // namespace kvilt
