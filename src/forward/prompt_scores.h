// forward/prompt_scores.h: log probabilities of a prompt's tokens, gathered while its chunks are computed.
// Idea:       a row's logits say what the token behind it was worth. They are V floats, so the driver makes them for a
//             few rows at a time, and only the token's value, its rank and the `top` most likely ones are kept.
// Invariants: of every row as from Sampler::logprob, so they equal an answer's, to the bit where kernels are
//             row-invariant.
// Threads:    take() of different rows from any threads at once.
// Cost:       O(V) a row, in two or three passes; what is kept: bytes().
// Not here:   which rows run (sched/prefill.h), the head (Driver::score).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvilt/request.h"

namespace kvilt {

class PromptScores {
 public:
  PromptScores(std::span<const int32_t> prompt, int top);

  // Whether the row at `pos` has a token of the prompt behind it.
  bool takes(int32_t pos) const { return pos + 1 < static_cast<int32_t>(tokens_.size()); }
  // logits: V, of the row at `pos`. REQUIRES: takes(pos).
  void take(int32_t pos, std::span<const float> logits);

  // The first position whose logits were not numbers, if any.
  std::optional<int32_t> unsound() const;
  // One entry a token; of the first one only the id counts. REQUIRES: all rows were taken.
  std::vector<TokenLogprob> release() { return std::move(tokens_); }

  // Memory that the scores of so many tokens take, about.
  static int64_t bytes(int64_t tokens, int top);

 private:
  int top_;  // not const: a sequence that starts again is assigned an empty one
  std::vector<TokenLogprob> tokens_;
};

}  // namespace kvilt
