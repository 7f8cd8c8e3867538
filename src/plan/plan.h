// plan/plan.h: WHAT to compute, as data. A policy (policy/) writes a Plan, the driver (forward/) computes it and knows
// no method; the dense pass is the plan whose sets are full.
// Source: DESIGN 1, METHODS 1.2.
//
// A plan has stages; each starts again from the embeddings. Within a stage, layer l has a write set W(l): positions
// whose K and V are computed at l and stored before attention at l. Which rows run through l is derived, never chosen:
//   out(l) = union of W(m) and probe rows at m, for all m > l            (METHODS 1.2: A)
//   in(l)  = out(l - 1);  out of the last layer = {T - 1}: the row whose logits are wanted.
// A stage may be cut at layers: at a cut c the driver has run layers < c for all rows, written K and V of W(c),
// attended none at c, and calls refine() with the probes; refine may shrink W(m) for m > c and the later stages' sets.
//
//   stage:  layers 0 .. c-1   | c: K, V of W(c); probe -> refine | c's attention and FFN, layers c+1 .. L-1 for out(c)
//           `---- band 0 ----'                                     `---- band 1 ----'
//
// Between cuts a long prompt runs chunk by chunk (in increasing position), so selection always sees the whole prompt.
// Decode runs on the same plan: one row a step, through all layers, with the views that the prefill ended with.
// Not here: which keys are cached (PromptLayout in policy/policy.h), sampling.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/runs.h"
#include "kvilt/result.h"
#include "model/config.h"
#include "model/head_map.h"

namespace kvilt {

// Which keys the rows of a KV head see: absolute positions j <= i with i - j <= window or j < sink (a set: a key named
// twice counts once); window < 0: all. The last dense_last_rows rows of the prompt see all, and where there are such, so do
// the rows of the answer.
struct View {
  int32_t sink = 0, window = -1, dense_last_rows = 0;
  friend bool operator==(const View&, const View&) = default;
};

enum class Estimator : uint8_t {
  kColumnSum,           // sum over rows and heads of the attention weight at a position
  kColumnSumValueNorm,  // the same, times |V| of that position
  kKeyChange,           // squared distance of the K just computed for a position from its placed twin, realigned
  kValueChange,         // the same of V
  kOutside,             // share of a row's attention outside of views: per query head and view, not per position
  kWeights,             // the attention weights themselves, of each row and query head
};
// Whether rows look (with their queries); the others are compared.
constexpr bool looks(Estimator e) { return e != Estimator::kKeyChange && e != Estimator::kValueChange; }

// What to measure while a stage runs. The sums over layers, KV heads and rows make one score per position.
struct ProbeSpec {
  Estimator estimator = Estimator::kColumnSum;
  std::vector<int> layers;  // a cut layer, or layers below the stage's end
  Runs rows;                // positions whose queries look; for the changes: positions that are compared
  int32_t key_end = -1;     // attention weights are normalised over keys < key_end alone; -1: over all that a row sees
  std::vector<View> views = {};  // kOutside: what lies outside of each of them, whatever the plan lets the head see
};

struct Probe {
  std::vector<double> score;  // by position; 0 where no row looked
  // kOutside: [(layer * H + query head) * views + view], summed over the rows.
  std::vector<double> outside;
  // kWeights: per layer [(query head * rows + row) * prompt_len + position]; rows as the probe's, by position.
  std::vector<std::vector<float>> weights;
};

// Positions whose changes tell about each other. A chunk takes all rows of its range at once: keep ranges short.
struct CarryGroup {
  std::vector<Run> parts;  // pieces, or parts of them: sorted, disjoint, may touch; placed positions. Never empty
  Run range() const { return {parts.front().begin, parts.back().end}; }  // with what stands between its parts
  Runs positions() const { return normalize(Runs(parts.begin(), parts.end())); }
};

// What the placed tokens beside recomputed ones take over from them (METHODS 2.6): a group's recomputed positions S show by
// how much K and V changed, and every other position u of the group gets sum_s w(u, s) change(s), in a private copy.
// K's change is taken and added before its rotation, so that it does not depend on the distance from s to u.
struct Carry {
  enum class Kernel : uint8_t { kMean, kGaussian, kNearest, kContent };  // plan/carry.h
  Kernel kernel = Kernel::kGaussian;
  float width = 8;                 // kGaussian, kContent: sigma, in tokens
  float content_width = 0.9f;      // kContent: sigma of the contents' distance, in units of their spread
  float noise = 0.5f;              // of one change: what is added to k(s, s)
  bool gain = true;                // scale by how well the recomputed positions predict each other (forward/carry.h)
  float scale_k = 1, scale_v = 1;  // of what is added
  int layer_begin = 1;             // layer 0 needs no context: nothing changes there
  std::vector<CarryGroup> groups;  // their ranges are sorted and disjoint
};

// Which rows run the FFN (METHODS 2.3: F); the others keep their residual. Rows are chosen among those of a block of
// positions [n kFfnBlock, (n + 1) kFfnBlock), whole whatever the chunk, so that chunked = whole: in a block, the rows that
// matter most while their share of the block's total stays below `mass`, the first of them always; and the prompt's last
// `recent` rows.
inline constexpr int32_t kFfnBlock = 512;
struct FfnRule {
  enum class By : uint8_t {
    kAttention,  // the norm of the row's attention output, before the output projection (the paper's)
    kResidual,   // 1 / the norm of the residual that the FFN adds to: where it weighs most
    kRandom,     // as many rows as kAttention would take, drawn anew in each layer: the control
  };
  By by = By::kAttention;
  double mass = 1, deep_mass = 1;  // 1: all rows; deep_mass from layer deep_begin on
  // > 0: in layers of experts not the mass decides, but the score: rows below this share of their block's mean are left out.
  double expert_threshold = 0;
  int layer_begin = 0, deep_begin = INT32_MAX;
  int32_t recent = 128;
  int32_t answer = INT32_MAX;  // rows from here on are of the answer, in a prompt that starts again: they all run
  uint64_t seed = 1;
  double mass_at(int layer) const { return layer < layer_begin ? 1 : layer < deep_begin ? mass : deep_mass; }
  bool takes_all(int layer, bool experts) const {
    return experts && expert_threshold > 0 ? layer < layer_begin : mass_at(layer) >= 1;
  }
};

struct Stage {
  int layer_end = 0;       // layers [0, layer_end) run in full; L except for a stage that only probes
  std::vector<Runs> sets;  // distinct write sets
  std::vector<uint16_t>
      write;              // per layer in [0, layer_end], an index into sets; entry layer_end counts only if it is a cut
  std::vector<int> cuts;  // increasing, <= layer_end; refine() is called at each
  std::vector<ProbeSpec> probes;  // a probe's layers are all seen before the refine() that follows them
  std::optional<Carry> carry;
  std::optional<FfnRule> ffn;
  // Per layer * G + KV head, 1: at placed positions the head keeps what was placed (realigned), whatever is computed. Empty: none.
  std::vector<uint8_t> keeps_placed;
  bool discard = false;  // what the stage wrote is forgotten at its end: the next one starts from what was placed
  const Runs& write_at(int layer) const { return sets[write[static_cast<size_t>(layer)]]; }
};

struct Plan {
  int32_t prompt_len = 0;  // T
  std::vector<View> views{View{}};
  std::vector<uint16_t> head_view;  // per layer * G + KV head; empty: all view 0
  std::vector<Stage> stages;
  // Per layer * G + KV head what its view makes it, for accounts: the computing looks at views alone. Empty: all dense.
  std::vector<HeadClass> head_class;

  // Some rows see less than a dense pass would: what they compute is this request's alone, and no exact prefix of others.
  bool narrowed() const;
};

// The rows that the stage's probes name at `layer`.
Runs probe_rows(const Stage& stage, int layer);

// A stage whose write set is the same in all layers, up to layer_end.
Stage uniform_stage(const Runs& write, int layer_end);

// Rows that run through layers [begin, end) between two cuts, as each layer needs them. Derived from the stage.
struct Band {
  int layer_begin = 0, layer_end = 0;
  bool cut = false;           // after it: K, V of W(layer_end) and the probes of layer_end, then refine()
  bool last = false;          // of its stage
  std::vector<Runs> in, out;  // per layer - layer_begin; in[0] are the rows that enter
  Runs cut_rows;              // rows that reach the cut: W(layer_end) and its probe rows
};

// The band that starts at layer_begin. final_rows: out of the stage's last layer ({T - 1}, or empty).
Band next_band(const Stage& stage, int layer_begin, int num_layers, const Runs& final_rows);

// The invariants, stated once; a fuzzer attacks them. Errors: kInternal, naming stage, layer and rule.
//   sets are normal and inside [0, T); T - 1 is written in every layer of the last stage; cuts rise and lie in the
//   stage; rows nest with depth by construction, so W(l) must lie inside what enters layer l; probe layers and rows are
//   reachable; carry groups are sorted and known; `known` (placed or exact prefix) and what the plan writes cover [0, T) in every layer of the last stage.
Status validate(const Plan& plan, const ModelConfig& config, const Runs& known);

// A picture for tests and docs: a line a layer (deepest first), a column for every `step` positions; '#': all written,
// '+': some, '.': none.
std::string picture(const Plan& plan, int stage, int step);

}  // namespace kvilt
