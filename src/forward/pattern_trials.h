// forward/pattern_trials.h: what patterns of few keys would show the rows of a dense prompt, and what that would cost:
// for profiles of heads (engine/sparse_profile.h).
// Idea:       the rows attend once more for each pattern, by the code that serves requests (sparse_rows.h). Their
//             normaliser there, divided by that over all keys, is the share of their attention that the pattern holds;
//             nobody reads the output. So rounding to tiles and the choice's own cost are in the figures.
// Invariants: rows and heads are tried alike, each by itself. Nothing that the prompt computes changes.
// Threads:    the engine thread; kernels run on the pool.
// Cost:       for each pattern its choice and its attention. Not in the request's account.
// Not here:   which patterns (model/pattern_choice.h).
#pragma once

#include <span>
#include <vector>

#include "forward/looking_rows.h"
#include "forward/prepared_model.h"
#include "kv/page_table.h"
#include "plan/plan.h"

namespace kvilt {

struct PatternTrials {
  std::vector<SparseRule> rules;
  struct Tried {
    double held = 0, rows = 0;    // the sum of the shares, of so many rows and query heads
    double flops = 0, dense = 0;  // of choice and attention; of dense attention
  };
  std::vector<Tried> tried;  // (layer * G + KV head) * rules + rule; added to
};

struct TriedRows {
  const Plan& plan;
  const PageTable& kv;
  RowsAt rows;  // as they attended to all keys, lse included
};
// heads: those KV heads that see all. REQUIRES: the rows are whole blocks but for the last one, as a sparse rule's are.
void run_trials(const PreparedModel& model, const TriedRows& of, std::span<const int> heads, PatternTrials& trials,
                ThreadPool& pool);

}  // namespace kvilt
