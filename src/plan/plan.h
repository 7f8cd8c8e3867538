// plan/plan.h: WHAT to compute, as data. A policy (policy/) writes a Plan, the driver (forward/) computes it and knows
// no method; the dense pass is the plan whose sets are full.
// Source: docs/design/plan.md.
//
// A plan has stages; each starts again from the embeddings. Within a stage, layer l has a write set W(l): positions
// whose K and V are computed at l and stored before attention at l. Which rows run through l is derived, never chosen:
//   out(l) = union of W(m) and probe rows at m, for all m > l
//   in(l)  = out(l - 1);  out of the last layer = {T - 1}: the row whose logits are wanted.
// A stage may be cut at layers: at a cut c the driver has run layers < c for all rows, written K and V of W(c),
// attended none at c, and calls refine() with the probes; refine may shrink W(m) for m > c and the later stages' sets.
//
//   stage:  layers 0 .. c-1   | c: K, V of W(c); probe -> refine | c's attention and FFN, layers c+1 .. L-1 for out(c)
//           `---- band 0 ----'                                     `---- band 1 ----'
//
// Rows may also enter at a layer, with a hidden state that was stored: in(l) = out(l - 1) + entries(l).
//
// Between cuts a long prompt runs chunk by chunk (in increasing position), so selection always sees the whole prompt.
// Decode runs on the same plan: one row a step, through all layers, with the views that the prefill ended with.
// Not here: which keys are cached (PromptLayout in policy/policy.h), sampling.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/annex_kind.h"
#include "base/head_window.h"
#include "base/runs.h"
#include "kvilt/result.h"
#include "model/config.h"
#include "model/head_map.h"
#include "plan/carry.h"
#include "plan/decode_rule.h"
#include "plan/sparse_rule.h"

namespace kvilt {

// Which keys the rows of a KV head see: of the positions j <= i those with i - j <= window or j < sink (a set: a key
// named twice counts once); window < 0: all. The last dense_last_rows rows of the prompt see all, and where there are
// such rows, so do those of the answer.
struct View : HeadWindow {
  int32_t dense_last_rows = 0;
  friend bool operator==(const View&, const View&) = default;
};

// What a probe measures; forward/probes.cc has a function for each.
enum class Estimator : uint8_t {
  kColumnSum,           // sum over rows and heads of the attention weight at a position
  kColumnSumValueNorm,  // the same, times |V| of that position
  kKeyChange,           // squared distance of the K just computed for a position from its placed twin, realigned
  kValueChange,         // the same of V
  kOutside,             // share of a row's attention outside of views. For head profiles, and redknot's restore
  kWeights,             // the attention weights themselves, of each row and query head. For head profiles only
  kQueries,             // the rows' queries before RoPE, summed
  kBlockKeys,           // the rows' own keys before RoPE, summed over each block of them
  kFade,                // how the rows look back at each other, and how that fades with the distance (Probe::sums)
};
// True if the estimator is computed from the attention of rows; the others compare fresh with placed K or V.
constexpr bool looks(Estimator e) { return e != Estimator::kKeyChange && e != Estimator::kValueChange; }
// True if what is found is Probe::sums.
constexpr bool per_layer_sums(Estimator e) {
  return e == Estimator::kQueries || e == Estimator::kBlockKeys || e == Estimator::kFade;
}

// What to measure while a stage runs, summed over layers, KV heads and rows.
struct ProbeSpec {
  Estimator estimator = Estimator::kColumnSum;
  std::vector<int> layers;  // a cut layer, or layers below the stage's end
  Runs rows;                // positions whose queries look; for the changes: positions that are compared
  int32_t key_end = -1;     // attention weights are normalised over keys < key_end only; -1: over all that a row sees
  std::vector<View> views = {};  // kOutside: what lies outside of each of them, whatever the plan lets the head see
  int32_t block = 64;            // kBlockKeys: so many of the rows, in order, are a block
  bool at(int layer) const { return std::ranges::find(layers, layer) != layers.end(); }
};

// What a probe found. Its spec's estimator fills one of these.
struct Probe {
  std::vector<double> score;    // sums and changes: by position; 0 where no row looked
  std::vector<double> outside;  // kOutside: [(layer * H + query head) * views + view], summed over the rows
  // kWeights: per layer [(query head * rows + row) * prompt_len + position]; rows as the spec's, by position.
  std::vector<std::vector<float>> weights;
  // By layer. kQueries: H E. kBlockKeys: [block][G E]. kFade: for each of the spec's rows, by position, kFadeSums: over
  // the later rows, of the weight w that they give it as a mean over the query heads: w, log w, and log w log distance.
  std::vector<std::vector<double>> sums;
};
inline constexpr int kFadeSums = 3;
// One with zeros of the right size, to which the driver adds.
Probe empty_probe(const ProbeSpec& spec, const ModelConfig& config, int32_t prompt_len);
// What it holds by layer. A score by position is not counted: it is a thousandth of the position's KV.
int64_t probe_bytes(const ProbeSpec& spec, const ModelConfig& config);

// Which rows run the FFN (docs/design/heads.md#sparse-ffn); the others keep their residual. Rows are chosen among those
// of a block of positions [n kFfnBlock, (n + 1) kFfnBlock), whole whatever the chunk, so that chunked = whole: in a
// block, the rows that matter most while their share of the block's total stays below `mass`, the first of them always;
// and the prompt's last `recent` rows.
inline constexpr int32_t kFfnBlock = 512;
struct FfnRule {
  enum class By : uint8_t {
    kAttention,  // the norm of the row's attention output, before the output projection (the paper's)
    kResidual,   // 1 / the norm of the residual that the FFN adds to: where it weighs most
    kRandom,     // as many rows as kAttention would take, drawn anew in each layer: the control
  };
  By by = By::kAttention;
  double mass = 1, deep_mass = 1;  // 1: all rows; deep_mass from layer deep_begin on
  // > 0: in layers of experts the score decides, not the mass: rows below this share of their block's mean do not run.
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

// Placed positions whose rows do not run below `state.layer`: there they enter, with the stored state of their token.
struct RowEntry {
  AnnexKind state;  // of a kind with a row a token: its hidden state as it entered the layer
  Runs rows;        // inside W(layer), written at no layer below
  int layer() const { return state.layer; }
};

// What is stored where a K or V was computed that has a placed twin: share * new + (1 - share) * old (Stage::fate).
struct Fate {
  double share = 1;
  bool by_cosine = false;  // the share is the cosine of new and old: of a token's K, realigned, and of its V, by layer
};

// Rows that see `keys` only, of the keys before them, in all layers of a stage; they are among these themselves.
struct Sight {
  Runs rows, keys;
};

// Rows at positions from `rows` on see the keys before `before` as if each were `distance` positions back, wherever it
// is: InfLLM's single angle. In layers that the model narrows to a window all keys stay where they are.
struct FarKeys {
  int32_t rows = 0, before = 0, distance = 0;
};

struct Stage {
  int layer_end = 0;       // layers [0, layer_end) run in full; L except for a stage that only probes
  std::vector<Runs> sets;  // distinct write sets
  // Per layer in [0, layer_end], an index into sets; entry layer_end counts only if it is a cut.
  std::vector<uint16_t> write;
  std::vector<int> cuts;          // increasing, <= layer_end; refine() is called at each
  std::vector<ProbeSpec> probes;  // a probe's layers are all seen before the refine() that follows them
  std::vector<RowEntry> entries;  // layers rise, and are neither 0 nor cuts
  std::optional<Carry> carry;
  std::optional<FfnRule> ffn;
  // Positions that run, whatever is written of them, and attend in the last layer too, where else only the last row
  // does: a decode rule looks with their queries. Set by sched/prefill.h.
  Runs lookers;
  // Per layer * G + KV head, 1: at placed positions the head keeps what was placed (realigned), whatever is computed.
  // Empty: none.
  std::vector<uint8_t> keeps_placed;
  // By layer, positions whose keys no row of the stage sees, and of the last stage no row of the answer. None of its own
  // rows. Empty: there are none.
  std::vector<Runs> unseen;
  std::optional<FarKeys> far;  // of the last stage, and of the answer's rows as of its own; none: no key is moved
  std::vector<Sight>
      sights;  // of placed positions, none in two of them; all other rows see what the rest of the plan says
  std::optional<Fate> fate;  // none: what was computed is stored
  // So many tokens of the answer are guessed once the stage's rows have run: the likeliest by its own logits, each a row
  // at T, T + 1, ... of its own, up to an end token. They look as the probes' rows do, and are forgotten.
  int ahead = 0;
  bool discard = false;  // what the stage wrote is forgotten at its end: the next one starts from what was placed
  // Where refine() has yet to choose the sets: the share of their reused positions that it is expected to leave. Only
  // the order of requests depends on it (sched/scheduler.h).
  double expected = 1;
  const Runs& write_at(int layer) const { return sets[write[layer]]; }
  const RowEntry* entry_at(int layer) const {  // null: none
    const auto at = std::ranges::find(entries, layer, &RowEntry::layer);
    return at == entries.end() ? nullptr : &*at;
  }
  bool hides_at(int layer) const { return !unseen.empty() && !unseen[layer].empty(); }
  const Sight* sight_of(int32_t pos) const {  // null: it has none
    const auto at = std::ranges::find_if(sights, [pos](const Sight& sight) { return contains(sight.rows, pos); });
    return at == sights.end() ? nullptr : &*at;
  }
};

struct Plan {
  int32_t prompt_len = 0;  // T
  std::vector<View> views{View{}};
  std::vector<uint16_t> head_view;  // per layer * G + KV head; empty: all view 0
  std::vector<Stage> stages;
  // Per layer * G + KV head what its view makes it, for accounts: the driver reads views only. Empty: all dense.
  std::vector<HeadClass> head_class;
  std::optional<SparseRule> sparse;  // of the rows of the last stage; none: they see all that their views show
  std::optional<DecodeRule> decode;  // none: the rows of the answer see all that their views show
  // Hidden states that are published with the K and V: of each row that the last stage writes at `layer`, as it entered
  // it (kv/annex.h).
  std::vector<AnnexKind> keep;

  // True if some rows see less than in a dense pass by a view or a stage's unseen keys, or see keys where they are not,
  // or do not run the FFN: nothing of it serves others. Not of a sparse rule: such a prompt serves as a chain
  // (PromptLayout::dense). Nor of sights: their rows are of pieces, and what a policy leaves of those serves itself
  // alone.
  bool narrowed() const;
  // True if it computes all rows of [from, T) as a dense pass does, but for what its heads' windows show. Then the KV of
  // a prompt is that of every longer one's beginning, and a session holds all of it.
  bool only_windows(int32_t from) const;
};

// The rows that the stage's probes name at `layer`, and in the last one its lookers. lookers_at(): these alone.
Runs probe_rows(const Stage& stage, int layer);
const Runs& lookers_at(const Stage& stage, int layer);

// Rows that run for the stage's lookers alone: nothing of them is written. What other rows choose together must not
// depend on them.
Runs rows_that_only_look(const Stage& stage, int layer);

// A stage whose write set is the same in all layers, up to layer_end.
Stage uniform_stage(const Runs& write, int layer_end);

// Rows that run through layers [begin, end) between two cuts, as each layer needs them. Derived from the stage.
struct Band {
  int layer_begin = 0, layer_end = 0;
  bool cut = false;           // after it: K, V of W(layer_end) and the probes of layer_end, then refine()
  bool last = false;          // of its stage
  std::vector<Runs> in, out;  // per layer - layer_begin; in[0] are the rows that run from its beginning
  Runs cut_rows;              // rows that reach the cut: W(layer_end) and its probe rows
  Runs rows;                  // all that run in it: in[0], or cut_rows without a layer, and entries
};

// The band that starts at layer_begin. final_rows: out of the stage's last layer ({T - 1}, or empty).
Band next_band(const Stage& stage, int layer_begin, int num_layers, const Runs& final_rows);

// The invariants, stated once; a fuzzer attacks them. Errors: kInternal, naming stage, layer and rule.
//   Sets are normal and inside [0, T); T - 1 is written in every layer of the last stage; cuts rise and are inside the
//   stage; every band has rows; rows nest with depth by construction, but for entries, which are placed and named nowhere below their layer;
//   probe layers and rows are reachable; carry groups are sorted and known; `known` (placed or exact prefix) and what the plan writes cover
//   [0, T) in every layer of the last stage.
Status validate(const Plan& plan, const ModelConfig& config, const Runs& known);

// A picture for tests and docs: a line a layer (deepest first), a column for every `step` positions; '#': all written,
// '+': some, '.': none.
std::string picture(const Plan& plan, int stage, int step);

}  // namespace kvilt
