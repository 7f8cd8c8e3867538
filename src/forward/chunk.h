// forward/chunk.h: what the driver is given: a part of one band of one sequence, and where its results go.
// Not here: who fills it (engine/engine_loop.cc).
#pragma once

#include <span>

#include "forward/carry.h"
#include "forward/hidden_rows.h"
#include "forward/prompt_scores.h"
#include "forward/selected_keys.h"
#include "kv/page_table.h"
#include "plan/plan.h"

namespace kvilt {

// The share of their attention that rows saw, summed over `rows` of them and their heads (held_mass.h).
struct HeldMass {
  double sum = 0, rows = 0;
  double share() const { return rows > 0 ? sum / rows : -1; }  // -1: not measured
  HeldMass& operator+=(const HeldMass& other) {
    sum += other.sum;
    rows += other.rows;
    return *this;
  }
};

struct PatternTrials;

// Work that was done, for one sequence's account.
struct Work {
  double linear_flops = 0, attention_flops = 0, bytes = 0;
  HeldMass held;  // measured where Chunk::measures_held
  Work& operator+=(const Work& other) {
    linear_flops += other.linear_flops;
    attention_flops += other.attention_flops;
    bytes += other.bytes;
    held += other.held;
    return *this;
  }
};

// A part of one band of one sequence: its rows with positions in `range`.
struct Chunk {
  PageTable* kv = nullptr;
  const Plan* plan = nullptr;
  const Stage* stage = nullptr;
  const Band* band = nullptr;
  Run range;
  std::span<const int32_t> tokens;  // by position, ...
  int32_t tokens_at = 0;            // ... from this one on
  HiddenRows* hidden = nullptr;     // read at the start of a later band, written at a cut
  std::span<KeptRows> kept;         // of a plan that keeps states, in its last stage
  CarryState* carry = nullptr;      // of a stage that carries
  SelectedKeys* keys = nullptr;     // of a plan with a decode rule
  std::span<Probe> probes;          // one per stage->probes, as empty_probe() made them
  float* logits = nullptr;          // V values of each row that leaves the last layer; null: not wanted
  PromptScores* scores = nullptr;   // takes what rows that leave the last layer say; those have no `logits` then
  float* last_hidden = nullptr;     // where logits are wanted: D values, the last such row behind the final norm
  bool measures_held = false;
  PatternTrials* trials = nullptr;  // of a dense plan: patterns to measure besides (pattern_trials.h)
  Work work;                        // added to
};

}  // namespace kvilt
