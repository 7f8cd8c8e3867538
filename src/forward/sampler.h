// forward/sampler.h: logits to a token. Penalties, bias, temperature, top-k, top-p, min-p, seeded draw,
// log-probabilities.
// Invariants: the n-th draw of a request is a function of its seed and n only, so the text does not depend on the
//             batch, nor on the thread that draws. Order of the filters: allowed ids; bias, repetition, presence and frequency
//             penalties; barred ids; temperature; top-k; top-p; min-p.
// Threads:    one per request; working memory: one per thread. Requests are drawn side by side (engine/engine_loop.cc).
// Cost:       O(V): a pass for the largest logit of each block, one of vector exp for the sum where it is needed. Only
//             blocks that reach into the head are looked through, and only the head is sorted.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvilt/request.h"

namespace kvilt {

// Working memory of a thread that draws. It has room for V tokens from the start, so that no draw allocates; memory
// that no draw needs is never touched.
class SamplerScratch {
 public:
  explicit SamplerScratch(int64_t V);
  SamplerScratch(SamplerScratch&&) = default;  // a copy would have no room

 private:
  friend class SamplerHead;
  friend class Sampler;
  struct Candidate {
    int32_t id;
    float logit;  // (logit - largest) / temperature
  };
  std::vector<float> block_most_;   // the largest logit of each block
  std::vector<double> block_mass_;  // the sum of its weights
  std::vector<Candidate> kept_;
  std::vector<double> weight_;  // of the first of kept_
};

class Sampler {
 public:
  // prompt: for the repetition penalty, which counts the prompt's tokens as well.
  Sampler(const SamplingParams& params, uint64_t seed, std::span<const int32_t> prompt);

  // None of these ids is one of the first `draws` tokens, unless nothing else may come.
  void bar(std::vector<int32_t> ids, int draws);

  // Whether the logits can be sampled: none is NaN or +infinity, and not all are -infinity. A model whose weights or
  // activations overflow gives others.
  static bool can_sample(std::span<const float> logits);

  // Chooses the next token. logits (V) are changed. REQUIRES: can_sample(logits).
  int32_t sample(std::span<float> logits, SamplerScratch& scratch);
  // The same with working memory for this once.
  int32_t sample(std::span<float> logits) {
    SamplerScratch scratch(std::ssize(logits));
    return sample(logits, scratch);
  }
  // Takes `id` as chosen (teacher forcing).
  void accept(int32_t id);

  // Log-probability and rank of id, and log-probabilities of the `top` most likely tokens (fewer where the others are
  // impossible), from logits without penalties. Of equal logits the lower id comes first.
  static TokenLogprob logprob(std::span<const float> logits, int32_t id, int top);

 private:
  void allow_only(std::span<float> logits) const;
  void penalise(std::span<float> logits) const;
  void forget_oldest();
  int32_t draw(std::span<const float> logits, double u, SamplerScratch& scratch) const;
  SamplingParams params_;
  uint64_t seed_;
  uint64_t draws_ = 0;
  std::vector<int32_t> barred_;
  uint64_t barred_until_ = 0;                   // draws
  std::unordered_map<int32_t, int> seen_;       // generated: id -> times
  std::unordered_map<int32_t, int> in_prompt_;  // only with a repetition penalty
  std::deque<int32_t> recent_;                  // only with a window: what it holds, the prompt's first
  size_t of_prompt_ = 0;                        // of these
};

}  // namespace kvilt
