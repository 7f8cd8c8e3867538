// forward/sampler.h: logits to a token. Penalties, bias, temperature, top-k, top-p, min-p, seeded draw,
// log-probabilities.
// Invariants: the n-th draw of a request is a function of its seed and n only, so the text does not depend on the
//             batch, nor on the thread that draws. Order of the filters: allowed ids; bias, repetition, presence and frequency
//             penalties; barred ids; temperature; top-k; top-p; min-p.
// Threads:    one per request; working memory: one per thread. Requests are drawn side by side (engine/engine_loop.cc).
// Cost:       O(V): a pass for the largest logit of each block, one of vector exp for the sum where it is needed. Only
//             blocks that reach into the head are looked through, and only the head is sorted. Of a mask's refused
//             tokens no logit is read or written but where they stand among many that are allowed: a draw among few
//             tokens costs a pass over the mask.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvilt/request.h"

namespace kvilt {

// The tokens that may be drawn: bit id % 32 of word id / 32. No words: all of them.
using TokenMask = std::span<const int32_t>;

// Minus infinity for the others.
void rule_out(TokenMask may, std::span<float> logits);

class SamplerHead;

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
  std::vector<uint8_t> block_reading_;  // how each block of logits is read (SamplerHead::Reading)
  std::vector<float> block_most_;       // the largest logit of each
  std::vector<double> block_mass_;      // the sum of its weights
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

  // Chooses the next token among those that may come: bit for bit as if the others' logits were minus infinity from the
  // start. logits (V) are changed. REQUIRES: can_sample(logits), with a mask those of its tokens; no bits beyond V, and
  // not allowed_ids as well.
  int32_t sample(std::span<float> logits, SamplerScratch& scratch, TokenMask may = {});
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
  // The same of the distribution from which the last sample() drew `id`, with what that call was given and left of it.
  // What is left out is not among the likely ones; of a greedy draw that is all but the best.
  TokenLogprob drawn_logprob(std::span<const float> logits, const SamplerScratch& scratch, TokenMask may, int32_t id,
                             int top) const;

 private:
  bool filters_k(size_t V) const;  // top-k does something
  bool filters(size_t V) const;    // top-k, top-p or min-p do
  void allow_only(std::span<float> logits) const;
  void penalise(std::span<float> logits) const;
  void forget_oldest();
  int32_t draw(SamplerHead& head, double u, size_t V, std::vector<double>& weight) const;
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
