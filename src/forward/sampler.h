// forward/sampler.h: logits to a token. Penalties, bias, temperature, top-k, top-p, min-p, seeded draw,
// log-probabilities.
// Invariants: the n-th draw of a request is a function of its seed and n only, so the text does not depend on the
//             batch. Order of the filters: bias, repetition, presence and frequency penalties; temperature; top-k;
//             top-p; min-p.
// Threads:    one per request.
// Cost:       O(V), and a partial sort of the kept candidates.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvilt/request.h"

namespace kvilt {

class Sampler {
 public:
  // prompt: for the repetition penalty, which counts the prompt's tokens as well.
  Sampler(const SamplingParams& params, uint64_t seed, std::span<const int32_t> prompt);

  // Whether the logits can be sampled: none is NaN or +infinity, and not all are -infinity. A model whose weights or
  // activations overflow gives others.
  static bool can_sample(std::span<const float> logits);

  // Chooses the next token. logits (V) are changed. REQUIRES: can_sample(logits).
  int32_t sample(std::span<float> logits);
  // Takes `id` as chosen (teacher forcing).
  void accept(int32_t id);

  // Log-probability of id and of the `top` most likely tokens, from the unmodified logits.
  static TokenLogprob logprob(std::span<const float> logits, int32_t id, int top);

 private:
  void penalise(std::span<float> logits) const;
  SamplingParams params_;
  uint64_t seed_;
  uint64_t draws_ = 0;
  std::unordered_map<int32_t, int> seen_;       // generated: id -> times
  std::unordered_map<int32_t, int> in_prompt_;  // only with a repetition penalty
};

}  // namespace kvilt
