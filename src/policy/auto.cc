// policy/auto.cc: the default policy: mend with one dial, `quality`.
//   draft     mend r .05: one look. Without the look (anchors only, .08 of every piece) the KL is 1.7 times as high,
//             and only .015 of a full pass is saved.
//   balanced  mend with two looks. The question's attention finds the text that the question reads. Where that text in
//             turn leans on another piece ("as the town above"), only its own tokens show it. So the share `hop` of the
//             tokens that the question looks at most is computed for a look of its own, and forgotten; both looks
//             together choose the share r that mend computes.
//   exact     the exact prefix and nothing else: `prefix`.
//   auto      balanced for the text that the caller marked, exact for all other: what a request gets when nobody said
//             anything about quality. Any of them may be kept to marked text, or not, with text=marked | all.
// Look-alikes: where the reused tokens, or those of one piece, are told apart by little (rows of a list, of a log;
//          look_alike_pieces()), a small error points to the wrong row: draft and balanced compute the share `alike`
//          there instead of r. Of 90 look-ups in such lists full answered .567, balanced with r .31 .411, with .70 .544;
//          .70 was chosen on 60 others (docs/results/look-alikes.md).
// Enter:   of what is computed over means, half starts a third up with the mean's state, so that r of the work computes a
//          fifth more tokens: full's whole answer in more of the questions (docs/results/seasoning.md).
// Source: this project's own; docs/papers.md#auto-ours has the figures, and what else was tried.
// Rules:  pieces are not used where fewer than kShort positions are to be computed without them, or where the plan is
//         estimated to take more than kWorthIt of the FLOPs of computing them all. The prompt is then computed, and
//         published, exactly.
// Cost:   in rows, for T tokens of which A are new: draft 2 A + r (T - A); balanced 2 A + (hop + r) (T - A).
// Not here: how tokens are scored and their change is carried (mend.cc), the flag for the dial (apps/command.cc).
#include <algorithm>
#include <utility>

#include "policy/mend.h"
#include "policy/question_stage.h"

namespace kvilt {
namespace {

constexpr int kTail = 64;        // mend's default
constexpr int32_t kShort = 128;  // positions; a prefill of 128 takes the time of a few decode steps
constexpr double kWorthIt = 0.8;
constexpr double kAlike = 0.7;
constexpr double kEnters = 0.5;  // two thirds and all of them were no better, on tuning questions

struct Dial {
  MendDial mend;
  double hop;
};
constexpr Dial kDraft{{.r = 0.05, .alike = kAlike, .enter = kEnters}, 0},
    kBalanced{{.r = 0.31, .alike = kAlike, .enter = kEnters}, 0.02};
constexpr int64_t kFewestLookers = 16;  // right answers of the probe model: .933 with 12, .950 with 16 and 22

// FLOPs of `rows` in all layers: linear layers, and attention over all positions before each row (windows are ignored).
double flops(const Runs& rows, const ModelConfig& c) {
  double linear = 0;
  for (int l = 0; l < c.L; ++l) {
    const bool dense = !c.sparse(l) || c.experts.beside_dense;
    const double ffn = (c.sparse(l) ? double{1} * c.experts.top_k * c.experts.F : 0) + (dense ? c.ffn_at(l) : 0);
    const KvHeads heads = c.heads_at(l);
    linear += 2.0 * c.D * (2.0 * c.H * heads.E + 2.0 * heads.G * heads.E + 3 * ffn);
  }
  double out = 0;
  for (const Run& run : rows) {
    const double middle = (run.begin + 1.0 + run.end) / 2;
    out += run.size() * (linear + 4.0 * c.L * c.H * c.E * middle);
  }
  return out;
}

class Auto : public ReusePolicy {
 public:
  Auto(const Dial& dial, bool unmarked) : dial_(dial), mend_(mend_with(dial.mend)), unmarked_(unmarked) {}

  bool wants_unmarked() const override { return unmarked_; }
  std::vector<AnnexKind> takes_annexes(const ModelConfig& config) const override {
    return mend_->takes_annexes(config);
  }
  bool wants_look_alikes() const override { return dial_.mend.alike != dial_.mend.r; }

  bool uses(const PromptLayout& layout, const ModelConfig& config) const override {
    const Runs all{layout.after_prefix()};
    if (count(all) < kShort) return false;
    const Runs always = always_computed(layout, kTail);
    const Runs rest = subtract(layout.reused(), always);
    double cost = flops(always, config);
    const double share = dial_.mend.share(layout);
    if (share > 0) cost *= 2;  // mend looks first
    cost += (dial_.hop + share) * flops(rest, config);
    return cost < kWorthIt * flops(all, config);
  }

  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Plan plan = mend_->plan(layout, config);
    if (plan.stages.size() < 2 || dial_.hop == 0) return plan;
    Stage second = uniform_stage(layout.reused(), config.L);
    second.probes = plan.stages[0].probes;
    second.probes[0].rows = second.sets[0];
    second.probes[0].key_end = -1;
    second.expected = dial_.hop;
    second.discard = true;  // they saw stale neighbours: mend computes again those that it chooses
    plan.stages.insert(plan.stages.begin() + 1, second);
    return plan;
  }

  void refine(const PromptLayout& layout, const ModelConfig& config, int stage, std::span<const Probe> probes,
              Plan& plan) const override {
    if (stage + 1 == static_cast<int>(plan.stages.size())) return;
    const Runs candidates = subtract(layout.reused(), always_computed(layout, kTail));
    if (plan.stages.size() == 3 && stage == 0) {
      const int64_t n = std::max(kFewestLookers, budget_of(layout, dial_.hop));
      Runs lookers = top_positions(probes[0].score, candidates, n);
      if (lookers.empty()) lookers = {layout.tail()};  // all of them are computed anyway, but a probe needs rows
      plan.stages[1].sets[0] = lookers;
      plan.stages[1].probes[0].rows = lookers;
    } else {
      const Probe both = together(probes, candidates);
      mend_->refine(layout, config, 0, {&both, 1}, plan);
    }
  }

 private:
  // The sum of the looks, each with weight 1 whatever the number of its rows.
  static Probe together(std::span<const Probe> looks, const Runs& candidates) {
    Probe out;
    out.score.assign(looks[0].score.size(), 0);
    for (const Probe& look : looks) {
      double sum = 0;
      for (const Run& run : candidates) {
        for (int32_t pos = run.begin; pos < run.end; ++pos) sum += look.score[pos];
      }
      for (size_t i = 0; sum > 0 && i < out.score.size(); ++i) out.score[i] += look.score[i] / sum;
    }
    return out;
  }

  const Dial dial_;
  const std::unique_ptr<ReusePolicy> mend_;
  const bool unmarked_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_auto(PolicyParams& p) {
  const std::string quality = p.choice("quality", "balanced", {"auto", "draft", "balanced", "exact"});
  if (quality == "exact") return make_policy("prefix", {}).value();
  const bool all = p.choice("text", quality == "auto" ? "marked" : "all", {"marked", "all"}) == "all";
  Dial dial = quality == "draft" ? kDraft : kBalanced;
  const double given = p.number("r,budget", -1, 0, 1);
  if (given >= 0) dial.mend.r = given;
  dial.mend.alike = p.number("alike", given >= 0 ? given : kAlike, 0, 1);
  dial.hop = p.number("hop", dial.hop, 0, 1);
  dial.mend.spread = p.number("spread", dial.mend.spread, 0, kMostSpread);
  dial.mend.enter = p.number("enter", dial.mend.enter, 0, 1);
  dial.mend.ahead = p.integer("ahead", dial.mend.ahead, 0, kMostAhead);
  return std::make_unique<Auto>(dial, all);
}

}  // namespace kvilt
