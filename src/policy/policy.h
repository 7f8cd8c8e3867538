// policy/policy.h: WHETHER and WHAT to recompute. A policy is one file here, named as in its paper (docs/papers.md); it
// turns what the index found into a Plan and, at cuts, the probes into smaller sets. Pure: no I/O, no state, any
// thread. To add one: a file NAME.cc with `std::unique_ptr<ReusePolicy> make_NAME(PolicyParams&)`, its test, its name
// in src/policy/CMakeLists.txt and its line in docs/papers.md.
// Not here: finding (content_index.h), computing (forward/), scheduling (sched/).
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvilt/result.h"
#include "model/head_map.h"
#include "plan/plan.h"

namespace kvilt {

// What is known of a prompt before anything is computed. prefix, reused and fresh partition [0, T).
struct PromptLayout {
  int32_t prompt_len = 0;
  int32_t prefix = 0;       // positions [0, prefix) stand as an exact prefix; at most T - 1
  std::vector<Run> pieces;  // placed pieces behind the prefix, in order; touching ones stay apart
  int32_t answer = -1;      // where what was generated begins, in a prompt that starts again; -1: nothing was
  int32_t question = -1;    // where the free text behind the caller's last mark begins; -1: no marks
  Runs reused() const { return normalize(Runs(pieces.begin(), pieces.end())); }
  Runs fresh() const { return subtract(Runs{{prefix, prompt_len}}, reused()); }
  Run tail() const { return {prompt_len - 1, prompt_len}; }  // the position whose logits are wanted
  // The free-form end of the prompt, whose tokens look for what matters: from `question` on; without marks, the last
  // fresh run (its last 256 positions); where the prompt ends in a piece, its last `tail` positions behind the prefix.
  Run suffix(int32_t tail) const;
};

class ReusePolicy {
 public:
  virtual ~ReusePolicy() = default;

  // What the engine should look for before it asks for a plan.
  virtual bool wants_prefix() const { return true; }
  virtual bool wants_segments() const { return true; }
  virtual bool wants_realigned() const { return true; }  // false: keys stay as they were rotated (a baseline)
  // Asked when pieces were found. false: they are left where they are; plan() sees a layout without them, so that the
  // prompt is computed and published exactly.
  virtual bool uses(const PromptLayout& layout, const ModelConfig& config) const { return true; }

  // A valid plan (plan/validate) in which sets that refine() will choose stand at their largest.
  virtual Plan plan(const PromptLayout& layout, const ModelConfig& config) const = 0;

  // Called at every cut of stage `stage`, and at the end of a stage that has probes but no cut: may shrink what comes
  // after. probes: those of the stages up to this one, in order.
  virtual void refine(const PromptLayout& layout, const ModelConfig& config, int stage, std::span<const Probe> probes,
                      Plan& plan) const {}
};

// What policies know beside a request's parameters: files that the engine read for them, by name. A policy does no I/O.
struct PolicyFiles {
  static constexpr const char* kHeadMap = "default";                // the head map of requests that name none
  std::map<std::string, std::shared_ptr<const HeadMap>> head_maps;  // checked against the model
};

// A request's parameters by name. Each take_ removes one; what is left over is an error, so that a typo is never
// ignored.
class PolicyParams {
 public:
  explicit PolicyParams(std::map<std::string, std::string> values, const PolicyFiles& files = {})
      : values_(std::move(values)), files_(files) {}
  // The value of the first of `names` (comma-separated aliases) that is given, else `fallback`; must lie in [low,
  // high].
  double number(const std::string& names, double fallback, double low, double high);
  int integer(const std::string& names, int fallback, int low, int high);
  std::string choice(const std::string& name, const std::string& fallback, const std::vector<std::string>& allowed);
  bool flag(const std::string& name, bool fallback);  // yes or no, and JSON's true or false
  // The head map that parameter `name` names; null where neither it nor a default one is there.
  std::shared_ptr<const HeadMap> head_map(const std::string& name);
  void wrong(const std::string& why);              // keeps the first
  Status finish(const std::string& policy) const;  // the first error, or the first parameter that nobody took

 private:
  const std::string* take(const std::string& names, std::string& taken);
  std::map<std::string, std::string> values_;
  const PolicyFiles files_;
  std::map<std::string, std::string> used_;
  std::vector<std::string> known_;
  std::string error_;
};

// Errors: kInvalidArgument, naming the policies there are, or the parameter that is wrong and what it may be.
Result<std::unique_ptr<ReusePolicy>> make_policy(const std::string& name,
                                                 const std::map<std::string, std::string>& params,
                                                 const PolicyFiles& files = {});
std::vector<std::string> policy_names();

// The n positions of `candidates` with the highest score; lower positions first on a tie. Sorted by position.
Runs top_positions(std::span<const double> score, const Runs& candidates, int64_t n);

}  // namespace kvilt
