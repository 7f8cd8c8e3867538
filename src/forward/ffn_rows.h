// forward/ffn_rows.h: which rows of a layer run the FFN (plan.h, FfnRule; docs/design/heads.md#sparse-ffn).
// Invariants: a block's choice depends on that block's rows only, so chunk and batch do not matter; of equal scores the
//             lower position comes first.
// Cost:       one pass over the rows' attention outputs, and a sort a block: under 1 % of the FFN that it saves.
#pragma once

#include <span>

#include "forward/prepared_model.h"
#include "plan/plan.h"

namespace kvilt {

// The rows of one sequence that leave `layer`: whole blocks of kFfnBlock positions, without rows that left before.
struct FfnRows {
  int layer = 0;
  int32_t prompt_len = 0;
  std::span<const int32_t> pos;
  Mat<const float> attended;            // attention outputs, all heads, before the output projection
  Mat<const float> residual;            // before the attention output joins it
  bool experts = false;                 // the FFN is one of experts
  std::span<const Run> only_look = {};  // these run for a decode rule alone, and choose with such ones only
};

// runs[r] = 1 if row r runs the FFN, else 0.
void choose_ffn_rows(const FfnRule& rule, const FfnRows& rows, uint8_t* runs);

}  // namespace kvilt
