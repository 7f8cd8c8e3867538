// policy/mend.cc: this project's own repair: select, recompute, and carry the change over to the other reused tokens.
// Source:  this project's own: docs/math/carry.md, docs/papers.md#mend-ours. Stage I is that of ProphetKV
//          (arXiv:2602.02579), scored by attention * |V|.
// Carry:   stage II computes the r |reused| highest and the question from the embeddings, and in every layer carries
//          their change over to the others. Most of the error of a reused piece is nearly one vector per (piece, layer,
//          head), and tokens alike in content share half of the rest: the recomputed tokens show how the others would
//          have changed.
// Anchors: the tokens that the question looks at are not a fair sample of their piece. Where the answer goes on to
//          something that was not asked for, a change measured only on them misleads. So a part of the budget goes to
//          anchors, evenly strided tokens of every piece: on average over the tuning cases as good as that budget by
//          score, on the continuation of a novel .6 of its KL (docs/results/README.md). If all of it goes to anchors,
//          there is no stage I, and the question need not be known. What is a mean over contexts has less common change
//          to show: there the anchors go as r grows, unless asked for (docs/results/seasoning.md).
// Spread:  what is a mean knows how much its contexts differ at each token. A score is the look's times that: what a token
//          costs that stays as it is (spread_scores.h).
// Enter:   what is a mean over contexts has the mean of its hidden states a third up as well. Of the chosen tokens the
//          half with the lower scores start there; what the others show of their change is carried over to them. r counts
//          work, so that more tokens are computed for it (docs/math/seasoning.md#states).
// Stale:   with stale=unseen a recomputed row reads of other pieces what is computed anew, and not what is stale or
//          carried over (RelaxKV's idea, piece_sights.h). Off: what is carried over is better than nothing, as far as known.
// Ahead:   with ahead=n the first look guesses n tokens of the answer, which look too (docs/results/mend.md#tokens-ahead).
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "policy/carry_groups.h"
#include "policy/mean_state.h"
#include "policy/mend.h"
#include "policy/piece_sights.h"
#include "policy/question_stage.h"
#include "policy/spread_scores.h"

namespace kvilt {
namespace {

// Of means over contexts: at r .15 as elsewhere, at r .30 and more none. There is less common change to show, and what
// is chosen by score is by then a sample of the piece (docs/results/seasoning.md).
constexpr double kMeansFull = 0.15, kMeansNone = 0.30;
// How much they differ at a token: up to r .20 with power 1, at r .30 and more not at all: of a third of all tokens it
// chose no better ones (docs/results/seasoning.md).
constexpr double kSpreadFull = 0.20, kSpreadNone = 0.30;
// 1 up to r `full`, 0 from `none` on, a line between.
double falling(double r, double full, double none) { return std::clamp((none - r) / (none - full), 0.0, 1.0); }

struct MendParams {
  MendDial dial;   // r .15 beat ProphetKV's .20 with 18 % fewer FLOPs
  double anchors;  // share of what is computed that is strided evenly; the rest has the highest scores
  bool anchors_given;
  int tail;
  bool value_norm = true;
  bool carries;
  bool sees_stale;
  Carry carry;
};

class Mend : public ReusePolicy {
 public:
  explicit Mend(const MendParams& params) : params_(params) {}

  std::vector<AnnexKind> takes_annexes(const ModelConfig& config) const override {
    const auto state = mean_state(config);
    return state && params_.dial.enter > 0 ? std::vector{*state} : std::vector<AnnexKind>();
  }

  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Stage repair = uniform_stage({layout.after_prefix()}, config.L);
    if (layout.pieces.empty()) return plan_for(layout, {repair});
    if (params_.carries) {
      repair.carry = params_.carry;
      repair.carry->groups = carry_groups(layout.pieces, params_.carry.kernel == Carry::Kernel::kContent);
    }
    const double share = params_.dial.share(layout);
    if (share == 0 || params_.anchors == 1) {  // nothing is chosen by score
      compute(layout, anchors(layout, params_.dial.r), repair);
      return plan_for(layout, {repair});
    }
    repair.expected = share;
    const auto estimator = params_.value_norm ? Estimator::kColumnSumValueNorm : Estimator::kColumnSum;
    Stage look = question_stage(layout, config, estimator, params_.tail);
    look.ahead = params_.dial.ahead;
    return plan_for(layout, {std::move(look), std::move(repair)});
  }

  void refine(const PromptLayout& layout, const ModelConfig& config, int stage, std::span<const Probe> probes,
              Plan& plan) const override {
    if (stage + 1 == static_cast<int>(plan.stages.size())) return;
    Probe weighed = probes[0];  // for all but look-alikes: of those far more than r is computed
    weigh_by_spread(layout, spread_power(), weighed.score);
    const Runs alike = alike_in(layout), rest = subtract(layout.reused(), alike);
    const std::optional<Entering> enters = entering_in(rest, layout, config);
    const double r = enters ? enters->bought(params_.dial.r) : params_.dial.r;
    const Runs strided = anchors(layout, r), always = unite(always_computed(layout, params_.tail), strided);
    Runs chosen = strided;
    const auto choose = [&](const Runs& text, double share, const Probe& by) {
      const int64_t n = std::max<int64_t>(budget_of(text, share) - count(intersect(strided, text)), 0);
      chosen = unite(chosen, top_positions(by.score, subtract(text, always), n));
    };
    choose(rest, r, weighed);
    choose(alike, params_.dial.alike, probes[0]);
    Stage& repair = plan.stages.back();
    compute(layout, chosen, repair);
    if (enters) enter(layout, *enters, intersect(chosen, rest), weighed, repair);
  }

 private:
  double spread_power() const {
    if (params_.dial.spread >= 0) return params_.dial.spread;
    return falling(params_.dial.r, kSpreadFull, kSpreadNone);
  }

  Runs alike_in(const PromptLayout& layout) const {
    return params_.dial.alike == params_.dial.r ? Runs{} : look_alike_pieces(layout);
  }

  // The chosen tokens, and what is computed whatever was chosen.
  void compute(const PromptLayout& layout, const Runs& chosen, Stage& repair) const {
    const Runs always = always_computed(layout, params_.tail);
    repair.sets[0] = unite(always, chosen);
    if (!params_.sees_stale)
      repair.sights = piece_sights(layout, subtract(chosen, always), repair.sets[0], RowsRead::kOwnPiece);
  }

  // Rows that enter with a mean's state: how much of the text has one, how many of its rows enter, and for what share of a
  // row's work they do not run.
  struct Entering {
    AnnexKind state;
    double known = 0, share = 0, saved = 0;
    // The share of the text that r of its work computes.
    double bought(double r) const { return r / (1 - known * share * saved); }
  };
  // None where no row of the text can enter, or all of it is to be computed.
  std::optional<Entering> entering_in(const Runs& text, const PromptLayout& layout, const ModelConfig& config) const {
    const auto state = mean_state(config);
    const int64_t known = state ? count(intersect(text, layout.annexed(*state))) : 0;
    if (known == 0 || params_.dial.enter == 0 || params_.dial.r == 1) return {};
    Entering out{*state, static_cast<double>(known) / static_cast<double>(count(text)), params_.dial.enter,
                 static_cast<double>(state->layer) / config.L};
    // More than all of the text cannot be computed: what is left of r goes into rows that run from the embeddings.
    out.share = std::min(out.share, (1 - params_.dial.r) / (out.known * out.saved));
    return out;
  }

  // Of the chosen tokens that have a state, those with the lower scores enter.
  void enter(const PromptLayout& layout, const Entering& how, const Runs& chosen, const Probe& scores,
             Stage& repair) const {
    const Runs known = subtract(intersect(chosen, layout.annexed(how.state)), always_computed(layout, params_.tail));
    const auto whole = std::llround(static_cast<double>(count(known)) * (1 - how.share));
    const Runs entering = subtract(known, top_positions(scores.score, known, whole));
    if (entering.empty()) return;
    repair.sets.push_back(subtract(repair.sets[0], entering));
    std::fill_n(repair.write.begin(), how.state.layer, uint16_t{1});
    repair.entries.push_back({how.state, entering});
  }

  // Share of a piece's tokens, of which the share r is computed.
  double anchor_share(const PromptLayout& layout, double r) const {
    const double share = r * params_.anchors;
    if (params_.anchors_given || layout.seasoned == 0) return share;
    const double means = layout.seasoned / static_cast<double>(count(layout.reused()));
    const double kept = falling(r, kMeansFull, kMeansNone);
    return share * (1 - means * (1 - kept));
  }

  // The middles of equal parts of every piece; not its first tokens, whose change is unlike that of the rest.
  Runs anchors(const PromptLayout& layout, double r) const {
    const double share = anchor_share(layout, r), of_alike = anchor_share(layout, params_.dial.alike);
    const Runs alike = alike_in(layout);
    Runs out;
    for (const Run& piece : layout.pieces) {
      const bool looks_alike = !intersect(alike, Runs{piece}).empty();
      const int64_t n = std::llround((looks_alike ? of_alike : share) * piece.size());
      for (int64_t i = 0; i < n; ++i) {
        const auto pos = piece.begin + static_cast<int32_t>(piece.size() * (2 * i + 1) / (2 * n));
        out.push_back({pos, pos + 1});
      }
    }
    return normalize(out);
  }

  const MendParams params_;
};

MendParams params_of(PolicyParams& p) {
  MendParams params;
  params.anchors_given = p.given("anchors");
  const double r = p.number("r,budget", 0.15, 0, 1);
  params.dial = {.r = r, .alike = r};
  params.anchors = p.number("anchors", 0.25, 0, 1);
  params.tail = p.integer("tail", 64, 1, 1 << 20);
  if (params.anchors < 1) {  // else nobody looks
    params.dial.spread = p.number("spread", params.dial.spread, 0, kMostSpread);
    params.dial.enter = p.number("enter", params.dial.enter, 0, 1);
    params.dial.ahead = p.integer("ahead", params.dial.ahead, 0, kMostAhead);
    params.value_norm = p.flag("value_norm", params.value_norm);
  }
  params.sees_stale = p.choice("stale", "seen", {"seen", "unseen"}) == "seen";
  if (!params.sees_stale && params.dial.enter > 0) p.wrong("parameter 'enter' is of stale=seen");
  const std::string kernel = p.choice("carry", "content", {"content", "gaussian", "mean", "nearest", "none"});
  params.carries = kernel != "none";
  params.carry.kernel = kernel == "mean"       ? Carry::Kernel::kMean
                        : kernel == "nearest"  ? Carry::Kernel::kNearest
                        : kernel == "gaussian" ? Carry::Kernel::kGaussian
                                               : Carry::Kernel::kContent;
  // Distances are sums in fp32: far below .1 their rounding could make the system indefinite.
  params.carry.content_width = static_cast<float>(p.number("content_width", 0.9, 0.1, 1e6));
  params.carry.width = static_cast<float>(p.number("width", 8, 0.01, 1e6));
  params.carry.noise = static_cast<float>(p.number("noise", 0.5, 0.05, 1e6));
  params.carry.gain = p.flag("gain", true);
  params.carry.scale_k = static_cast<float>(p.number("scale_k", 1, 0, 4));
  // With the plain mean half of V's change was best, with the local kernels all of it.
  params.carry.scale_v = static_cast<float>(p.number("scale_v", kernel == "mean" ? 0.5 : 1, 0, 4));
  params.carry.layer_begin = p.integer("carry_from", 1, 0, 10000);
  return params;
}

}  // namespace

std::unique_ptr<ReusePolicy> make_mend(PolicyParams& p) { return std::make_unique<Mend>(params_of(p)); }

Runs look_alike_pieces(const PromptLayout& layout) {
  if (layout.look_alikes > kLookAlike) return layout.reused();
  CHECK(layout.piece_look_alikes.empty() || layout.piece_look_alikes.size() == layout.pieces.size());
  Runs out;
  for (size_t i = 0; i < layout.piece_look_alikes.size(); ++i) {
    const Run& piece = layout.pieces[i];
    if (layout.piece_look_alikes[i] > kLookAlikePiece && piece.size() >= kLookAlikeTokens) out.push_back(piece);
  }
  return normalize(out);
}

double MendDial::share(const PromptLayout& layout) const {
  const int64_t all = count(layout.reused());
  if (alike == r || all == 0) return r;
  const double part = static_cast<double>(count(look_alike_pieces(layout))) / static_cast<double>(all);
  return r + (alike - r) * part;
}

std::unique_ptr<ReusePolicy> mend_with(const MendDial& dial) {
  PolicyParams defaults({});
  MendParams params = params_of(defaults);
  params.dial = dial;
  return std::make_unique<Mend>(params);
}

}  // namespace kvilt
