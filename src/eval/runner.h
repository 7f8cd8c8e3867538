// eval/runner.h: runs cases under policies and measures each against the full pass of the same run.
// Method: for each case the cache is emptied and warmed. `full` answers first and gives the reference; then every other
//         policy is fed full's own answer (teacher forcing), in a seeded random order. Nothing is published meanwhile,
//         and the runner checks that the cache did not change, so no policy profits from another's pass. One that asks
//         before the case (RunOptions::before) comes last, and the cache is warmed anew behind it. If the tokens that a
//         policy finds most likely differ from full's answer, it also answers by itself, for its score.
// Cost:   forward passes; everything else is a few per cent of a case (base/divergence.h).
// Not here: means and intervals (aggregate.h), files (journal.h).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "eval/case.h"
#include "eval/prompt.h"
#include "kvilt/engine.h"

namespace kvilt {

struct PolicySpec {
  std::string label;  // as written: sparsex:l_star=0
  PolicyChoice choice;
};
// "sparsex:l_star=0:k=0.1" is policy sparsex with two parameters. Errors: kInvalidArgument.
Result<PolicySpec> parse_policy(const std::string& label);

// One case under one policy. Ratios are to full's pass of the same case in the same run, with RunOptions::turns to
// prefix's: the same turn, dense.
struct CaseResult {
  std::string suite, id, policy;       // policy: the label
  std::string digest;                  // of the case (case_digest.h); empty: of before it was written
  std::optional<double> score;         // none: the case has no answers
  double kl_first = 0, kl_answer = 0;  // nats
  double nll_gap = 0;                  // mean of log p_full - log p_policy over the tokens of kl_answer
  std::optional<double> kl_prompt;     // mean over the prompt's last rows; none: RunOptions::prompt_rows is 0
  bool top1 = true;                    // the first answer token is the same
  double agree = 1;                    // share of positions with the same most likely token
  std::optional<bool> same_answer;     // none: distances along a true text
  double ttft_s = 0, ttft_ratio = 1, flops = 0, flops_ratio = 1, bytes = 0;
  int prompt = 0, prefix = 0, reused = 0, recomputed = 0, fresh = 0;
  int near = 0;                                       // of the reused ones, those found in text that nearly repeats
  double kept_ratio = 1;                              // share of the reused tokens' keys that the answer sees
  double cells_ratio = 1;                             // attention's FLOPs, the choice of keys included
  std::optional<double> decode_cells_ratio;           // the answer's; none: none of its rows ran, as of the two below
  std::optional<double> token_s, decode_bytes;        // a token of the answer after its first; none: it had no other
  int64_t evicted_bytes = 0;                          // of K and V, with decode_evict
  std::optional<double> held_mass, decode_held_mass;  // with RunOptions::held_mass (PromptUsage)
  std::string answer;

  double reused_ratio() const { return prompt > prefix ? static_cast<double>(reused) / (prompt - prefix) : 0; }
  double recomputed_ratio() const { return reused > 0 ? static_cast<double>(recomputed) / reused : 0; }
};

// A prompt as its patches: one case, one policy.
struct Patch {
  std::string kind;  // prefix, reused (and not recomputed), recomputed, fresh
  int tokens = 0;
  std::string text;
};
struct Quilt {
  std::string suite, id, policy, digest;
  std::vector<Patch> patches;  // in the prompt's order
};

struct RunOptions {
  Warm warm = Warm::kSystem;
  PolicyChoice warm_as = {"prefix", {}};  // who computes what is cached: crossquery keeps states of what it computes
  uint64_t seed = 1;
  int answer_tokens = 24;  // longest greedy answer
  int prompt_rows = 0;     // the prompt's last positions that are compared too; their work counts in the FLOPs
  bool held_mass = false;  // it is measured, which makes times longer
  double max_seconds = 0;  // 0: no limit; looked at between cases
  // For a policy with reuse_from=last: requests over the same pieces, in other orders and with other questions, that
  // come before the case. The case starts from what they leave of the pieces. Never is the case's first piece the first
  // of several.
  int before = 0;
  // Each policy is asked once before it is measured, so that what it stores about documents is there (samkv).
  bool settle = false;
  // Of a dialogue: before each policy is measured on the last turn, it is asked the turns before that, one by one, and
  // answers as the case has it; what it leaves of them is its cache. Nothing else is warmed, so that a case without an
  // earlier turn starts from an empty cache.
  bool turns = false;
  Seasoning seasoning = {};  // pieces have so many contexts before the case is asked; its seed is a case's own
};

struct RunEvents {
  // Whether there is a result of this case, known by its digest where the source has one, under the policy.
  std::function<bool(const CaseSource& source, const std::string& policy)> done_before;
  std::function<Status(const CaseResult&)> on_result;
  // The share of the work that is done, an estimate of the seconds left (< 0: unknown), and what is running.
  std::function<void(double share, double seconds_left, const std::string& note)> on_progress;
  std::function<Status(const Quilt&)> on_quilt;  // for every policy of the first case
};

// Whether it can be measured what the rows of each policy see (RunOptions::held_mass), before anything is run: the
// engine is asked for it on one token. Errors: the engine's, naming the policy.
Status check_held_mass(Engine& engine, const std::vector<PolicySpec>& policies);

// Runs what was not done before. `full` is always measured and reported, even if it is not in `policies`. Returns how
// many cases the time limit left out. Errors: the first that a case or the engine gives; with RunOptions::turns
// kInvalidArgument if no case has an earlier turn: at once, or at the end where only the model's writing tells.
Result<int> run_cases(Engine& engine, const std::vector<CaseSource>& cases, const std::vector<PolicySpec>& policies,
                      const RunOptions& options, const RunEvents& events);

}  // namespace kvilt
