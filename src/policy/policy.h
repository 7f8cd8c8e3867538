// policy/policy.h: WHETHER and WHAT to recompute. A policy is one file of this folder, named as in its paper. plan()
// turns what the index found into a Plan (plan/plan.h); refine() makes the plan smaller when the probes have looked.
//
// To add one (epic.cc is the shortest, sparsex.cc has a probe, a cut and a restart):
//   1. NAME.cc: a ReusePolicy, and `std::unique_ptr<ReusePolicy> make_NAME(PolicyParams&)`, which takes its parameters.
//   2. NAME in POLICIES, src/policy/CMakeLists.txt: requests, flags and benches know it then.
//   3. A test of its plans in policy_test.cc (or NAME_test.cc, added to TESTS), and of its limits in
//      tests/limits_test.cc or tests/repair_limits_test.cc: the settings at which it must equal `full` or `naive` bit
//      for bit, with a power check.
//   4. Its section in docs/papers.md: source, parameters and defaults, where it differs, what was reproduced.
//
// What a plan can ask for (docs/design/plan.md#words):
//   probes  Sums over chosen rows, at a cut's layer or at layers before the stage's end. By position: attention
//           (kColumnSum), the same times |V| (kColumnSumValueNorm), how far the K or V just computed moved from its
//           placed twin (kKeyChange, kValueChange; the rows must be written at that layer). By head and view: attention
//           outside of the view (kOutside). By layer: queries and mean keys before RoPE (kQueries, kBlockKeys), how
//           attention fades with distance (kFade). kWeights is for head profiles. A new kind is an Estimator in
//           plan/plan.h and a function in forward/probes.cc: CONTRIBUTING.md#a-probe.
//   unseen  By layer, positions that no row of a stage sees, nor the answer after the last one.
//   far     Keys that the last stage's rows see as if all were equally far back, and so does the answer.
//   sights  Placed rows that see only some keys, while the others see all.
//   fate    What is stored where a computed K or V has a placed twin: a mixture of both.
//   cuts    A stage is cut at layer c: K and V of W(c) are stored, nothing has attended at c. refine() may then shrink
//           W(m) for m > c, all sets of later stages, and set the views that the last stage ends with. A cut at layer 0
//           must end its stage. A stage with probes and without cuts is refined at its end.
//   stages  Each starts again from the embeddings; what a stage with `discard` wrote is forgotten. Only the last gives
//           logits.
//   always  In every layer of the last stage T - 1 is written, and each position is prefix, placed or written.
//           validate() checks this and more, and debug builds call it after every refine().
// Threads:  pure: no I/O, no state; any thread.
// Not here: finding (index/), computing (forward/), scheduling (sched/).
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/annex_kind.h"
#include "base/token_spread.h"
#include "kvilt/result.h"
#include "model/head_map.h"
#include "model/layer_map.h"
#include "model/sparse_map.h"
#include "plan/plan.h"

namespace kvilt {

// What is stored about a run of tokens, beside its KV (kv/annex.h).
struct AnnexBlock {
  AnnexKind kind;
  Run positions;  // of the prompt
  std::vector<std::byte> bytes;
};

// What is known of a prompt before anything is computed. Prefix, reused and fresh positions partition [0, T).
struct PromptLayout {
  int32_t prompt_len = 0;   // T
  int32_t prefix = 0;       // positions [0, prefix) are an exact prefix; at most T - 1
  std::vector<Run> pieces;  // the placed pieces after the prefix, in order; pieces that touch are not joined
  int32_t answer = -1;      // where the generated text begins, in a prompt that starts again; -1: there is none
  int32_t question = -1;    // where the free text after the caller's last mark begins; -1: no marks
  int32_t near = 0;         // of the pieces' positions, those of runs in text that nearly repeats what is cached
  int32_t seasoned = 0;     // of the pieces' positions, those whose KV is a mean over contexts (docs/math/seasoning.md)
  // The share of tokens in text that resembles other text, for policies that want it (index/look_alikes.h): of all
  // pieces together, and of each piece.
  double look_alikes = 0;
  std::vector<double> piece_look_alikes = {};
  // Per piece, for policies that want it: of the tokens right before it, how many stood right before its segment's too;
  // kWholeContext: all of them, from position 0 on.
  std::vector<int32_t> shared_context = {};
  static constexpr int32_t kWholeContext = INT32_MAX;
  // Of the kinds that the policy wants: the reused positions that have a row (kv/annex.h).
  std::vector<std::pair<AnnexKind, Runs>> annexes = {};
  const Runs& annexed(AnnexKind kind) const;
  std::vector<AnnexBlock> blocks = {};  // of the kinds that the policy wants: what is stored of what was placed
  bool dense = true;  // false: rows see few keys by a sparse rule, and nothing that they compute is exact
  // By position: how far the contexts of a mean lie apart there; nothing is known of other text. Empty: of none.
  std::vector<TokenSpread> spread = {};
  Runs reused() const { return normalize(Runs(pieces.begin(), pieces.end())); }
  Runs fresh() const { return subtract(Runs{after_prefix()}, reused()); }
  int32_t asked_end() const { return answer >= 0 ? answer : prompt_len; }  // of what was asked, without an answer
  Run after_prefix() const { return {prefix, prompt_len}; }                // all that is not an exact hit; never empty
  // Where the part ends that is as a dense pass leaves it, if the prefix is exact.
  int32_t exact_end() const { return !dense ? prefix : pieces.empty() ? prompt_len : pieces.front().begin; }
  Run tail() const { return {prompt_len - 1, prompt_len}; }  // the position whose logits are wanted
  // The end of the prompt whose tokens show what matters: from `question` on; without marks, the last fresh run; where
  // the prompt ends in a piece, its last `tail` positions. At most 256 positions of the first two; never the prefix.
  Run suffix(int32_t tail) const;
};

// A plan for the layout's prompt with these stages.
Plan plan_for(const PromptLayout& layout, std::vector<Stage> stages = {});

class ReusePolicy {
 public:
  virtual ~ReusePolicy() = default;

  // What the engine should look for before it asks for a plan.
  virtual bool wants_prefix() const { return true; }
  virtual bool wants_pieces() const { return true; }
  virtual bool wants_unmarked() const { return true; }      // false: pieces are cut to the caller's marks
  virtual bool wants_realigned() const { return true; }     // false: keys stay as they were rotated (a baseline)
  virtual bool wants_look_alikes() const { return false; }  // PromptLayout::look_alikes, piece_look_alikes are measured
  // PromptLayout::shared_context is measured, up to so many tokens; 0: it is not.
  virtual int32_t wants_shared_context() const { return 0; }
  // Kinds at layers of the model: PromptLayout::annexes says where the pieces have them.
  virtual std::vector<AnnexKind> wants_annexes(const ModelConfig& config) const { return {}; }
  // The same of kinds that means may have (policy/mean_state.h), which it does without as well.
  virtual std::vector<AnnexKind> takes_annexes(const ModelConfig& config) const { return {}; }
  // Whether the placed pieces are read as if they were stored in 8 bits (kv/stored_int8.cc).
  virtual bool wants_int8() const { return false; }
  // Whether later requests of the same policy may go on from what it leaves. False for controls and baselines whose KV is
  // wrong on purpose.
  virtual bool keeps_approximate() const { return wants_realigned(); }
  // Whether what it leaves of a whole prompt is kept as a chain (docs/design/kv.md#chains).
  virtual bool keeps_chain() const { return wants_pieces() && keeps_approximate(); }
  // Rows choose what they see together, in blocks of so many positions; 0: each for itself. A prompt that is asked again
  // is not left a chain that would have its last row choose alone.
  virtual int32_t chooses_by() const { return 0; }
  // Kinds of which PromptLayout::blocks is filled, and of which findings() may be.
  virtual std::vector<AnnexKind> wants_blocks() const { return {}; }
  // Whether rows of the answer see less than all: no decode rule goes with that.
  virtual bool answer_sees_less() const { return false; }
  // Asked when pieces were found. false: they are not placed; plan() sees a layout without them, so that the prompt is
  // computed and published exactly.
  virtual bool uses(const PromptLayout& layout, const ModelConfig& config) const { return true; }

  // A plan that validate() accepts, in which the sets that refine() will choose have their largest size.
  virtual Plan plan(const PromptLayout& layout, const ModelConfig& config) const = 0;

  // Called at every cut of stage `stage`, and at the end of a stage that has probes but no cut. May shrink what comes
  // after, and take a later stage out that is left without rows. probes: those of the stages up to this one, in order.
  virtual void refine(const PromptLayout& layout, const ModelConfig& config, int stage, std::span<const Probe> probes,
                      Plan& plan) const {}

  // Asked after each refine(): what stage `stage` found out about placed tokens that later requests can use. It must
  // follow from their KV alone: whoever may read that reads it.
  virtual std::vector<AnnexBlock> findings(const PromptLayout& layout, const ModelConfig& config, int stage,
                                           std::span<const Probe> probes) const {
    return {};
  }

  // Its name and the settings that were given and have an effect on what a prompt leaves, one text for each: what is
  // reused by the same policy only is found by it. make_policy() sets it.
  const std::string& identity() const { return identity_; }
  void set_identity(std::string text) { identity_ = std::move(text); }

  // What the rows of the answer see, whatever the prefill is: make_policy() sets it (policy/decode_methods.h).
  const std::optional<DecodeRule>& decode_rule() const { return decode_rule_; }
  void set_decode_rule(std::optional<DecodeRule> rule) { decode_rule_ = rule; }

 private:
  std::string identity_;
  std::optional<DecodeRule> decode_rule_;
};

// What policies know besides a request's parameters: files that the engine has read for them, by name.
struct PolicyFiles {
  static constexpr const char* kDefaultMap = "default";  // the name of the map for requests that name none
  // Checked against the model.
  std::map<std::string, std::shared_ptr<const HeadMap>> head_maps;
  std::map<std::string, std::shared_ptr<const SparseMap>> sparse_maps;
  std::map<std::string, std::shared_ptr<const LayerMap>> layer_maps;
};

// A request's parameters by name. Each call below takes one; what nobody took is an error, so that no typo is ignored.
class PolicyParams {
 public:
  explicit PolicyParams(std::map<std::string, std::string> values, const PolicyFiles& files = {})
      : values_(std::move(values)), files_(files) {}
  // The value of the first of `names` (comma-separated aliases) that is given, else `fallback`; must be in [low, high].
  double number(const std::string& names, double fallback, double low, double high);
  int integer(const std::string& names, int fallback, int low, int high);
  std::string choice(const std::string& name, const std::string& fallback, const std::vector<std::string>& allowed);
  bool flag(const std::string& name, bool fallback);  // yes or no, and JSON's true or false
  // The map that parameter `name` names; null where neither it nor a default one is there.
  std::shared_ptr<const HeadMap> head_map(const std::string& name);
  std::shared_ptr<const LayerMap> layer_map(const std::string& name);  // the same of a layer map
  std::shared_ptr<const SparseMap> sparse_map(const std::string& name);
  bool given(const std::string& name) const { return values_.contains(name); }  // and not taken
  void wrong(const std::string& why);                                           // keeps the first
  // What `name` was given, which was taken, changes nothing beside the others.
  void without_effect(const std::string& name) { settings_.erase(name); }
  // Those that were given and have an effect, each by its first name and in one spelling: ":name=value:...".
  std::string settings() const;
  Status finish(const std::string& policy) const;  // the first error, or the first parameter that nobody took

 private:
  const std::string* take(const std::string& names, std::string& taken);
  template <class Map>
  std::shared_ptr<const Map> map_of(const std::map<std::string, std::shared_ptr<const Map>>& maps,
                                    const std::string& name, const char* kind);
  std::map<std::string, std::string> values_;
  const PolicyFiles files_;
  std::map<std::string, std::string> used_;
  std::map<std::string, std::string> settings_;
  std::vector<std::string> known_;
  std::string error_;
};

// Errors: kInvalidArgument: no such policy (the message lists all), or a wrong parameter (it says what is allowed).
Result<std::unique_ptr<ReusePolicy>> make_policy(const std::string& name,
                                                 const std::map<std::string, std::string>& params,
                                                 const PolicyFiles& files = {});
std::vector<std::string> policy_names();
// Those that others are compared with and that answer nobody better: they cost up to two full passes, or choose blindly.
std::vector<std::string> control_policies();

// The n positions of `candidates` with the highest score; lower positions first on a tie. Sorted by position.
Runs top_positions(std::span<const double> score, const Runs& candidates, int64_t n);

}  // namespace kvilt
