// policy/crossquery.cc: cross-query segment reuse. Regime a: known pieces keep their K and V in all layers, but for a halo
// of tokens at each end. Regime b: they keep them below layer l_cut, and enter there with the hidden state that is cached
// with them; from there on everything is computed again.
// Source:  a draft without results, and the repairs of its later revisions; docs/papers.md#cross-query.
// Idea:    lower layers see what is near, so what was computed after other text is nearly right there, but at the ends.
// accept:  any: every known token; context: a token only if as many tokens right before it as its layers reach back
//          (context, or the draft's windows) are the same in both texts. What is not accepted is computed in full.
// store:   pool: as the KV pool has it; int8: pieces pass through 8 bits, K and V with a scale a channel, the state with
//          one a token.
// Differs: b's tokens without a stored state are computed in full. The draft's test of acceptance is left out: it needs
//          the pass that it is to save.
#include <algorithm>

#include "policy/policy.h"

namespace kvilt {
namespace {

// The left context that KV up to a layer depends on, as the draft's revisions have it.
int32_t window_of(int layer) { return layer < 8 ? 128 : layer < 16 ? 512 : PromptLayout::kWholeContext; }

class CrossQuery : public ReusePolicy {
 public:
  struct Settings {
    bool enters = false;  // regime b
    int halo = 0, l_cut = INT32_MAX;
    int32_t context = 0;  // 0: any
    bool int8 = false;
  };
  explicit CrossQuery(const Settings& settings) : s_(settings) {}

  int32_t wants_shared_context() const override { return s_.context; }
  bool wants_int8() const override { return s_.int8; }
  std::vector<AnnexKind> wants_annexes(const ModelConfig& config) const override {
    const bool enters = s_.enters && s_.l_cut > 0 && s_.l_cut < config.L;
    return enters ? std::vector<AnnexKind>{state()} : std::vector<AnnexKind>();
  }
  bool uses(const PromptLayout& layout, const ModelConfig&) const override { return !accepted(layout, 0).empty(); }

  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    if (!s_.enters || s_.l_cut >= config.L)
      return plan_for(layout, {uniform_stage(computed(layout, accepted(layout, s_.halo)), config.L)});
    const Runs known = accepted(layout, 0);
    const Runs entering = subtract(intersect(known, layout.annexed(state())), Runs{layout.tail()});
    Stage stage = uniform_stage(Runs{layout.after_prefix()}, config.L);
    Plan plan;
    if (s_.l_cut > 0 && !entering.empty()) {
      stage.sets.push_back(computed(layout, entering));
      std::fill_n(stage.write.begin(), s_.l_cut, uint16_t{1});
      stage.entries.push_back({state(), entering});
    }
    plan = plan_for(layout, {stage});
    if (s_.l_cut > 0) plan.keep = {state()};
    return plan;
  }

 private:
  AnnexKind state() const { return {s_.int8 ? AnnexOf::kHiddenInt8 : AnnexOf::kHiddenF32, s_.l_cut}; }

  // The pieces' tokens that are accepted, but for `halo` of those at each end of a piece.
  Runs accepted(const PromptLayout& layout, int32_t halo) const {
    Runs out;
    for (size_t i = 0; i < layout.pieces.size(); ++i) {
      Run run = layout.pieces[i];
      const int32_t shared = i < layout.shared_context.size() ? layout.shared_context[i] : 0;
      const int32_t lacking = shared == PromptLayout::kWholeContext ? 0 : std::max(0, s_.context - shared);
      run.begin = std::min(run.end, run.begin + std::min(lacking, run.size()));
      run = {run.begin + std::min(halo, run.size()), run.end - std::min(halo, run.size())};
      if (run.begin < run.end) out.push_back(run);
    }
    return normalize(std::move(out));
  }

  static Runs computed(const PromptLayout& layout, const Runs& reused) {
    return unite(subtract(Runs{layout.after_prefix()}, reused), Runs{layout.tail()});
  }

  const Settings s_;
};

}  // namespace

std::unique_ptr<ReusePolicy> make_crossquery(PolicyParams& p) {
  CrossQuery::Settings s;
  s.enters = p.choice("regime", "a", {"a", "b"}) == "b";
  if (s.enters) {
    s.l_cut = p.integer("l_cut", 8, 0, 1 << 10);
    if (s.l_cut % 4 != 0) p.wrong("parameter 'l_cut' is not a multiple of 4");
  } else {
    s.halo = p.integer("halo,h,budget", 8, 0, 1 << 20);
  }
  const int window = p.integer("context", 0, 0, 1 << 24);
  const bool by_context = p.choice("accept", window > 0 ? "context" : "any", {"any", "context"}) == "context";
  if (!by_context && window > 0) p.wrong("parameter 'context' is of accept=context");
  if (by_context) s.context = window > 0 ? window : window_of(s.enters ? s.l_cut : INT32_MAX);
  s.int8 = p.choice("store", "pool", {"pool", "int8"}) == "int8";
  return std::make_unique<CrossQuery>(s);
}

}  // namespace kvilt
