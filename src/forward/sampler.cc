#include "forward/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/divergence.h"

namespace kvilt {
namespace {

// SplitMix64 of (seed, n): a counter-based draw, uniform in [0, 1).
double uniform(uint64_t seed, uint64_t n) {
  uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1.0p-53;
}

constexpr float kLargest = std::numeric_limits<float>::max();  // what penalties may make of a logit

struct Candidate {
  int32_t id;
  float logit;
};
bool better(const Candidate& a, const Candidate& b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

}  // namespace

Sampler::Sampler(const SamplingParams& params, uint64_t seed, std::span<const int32_t> prompt)
    : params_(params), seed_(seed) {
  if (params_.repetition_penalty != 1) {
    for (const int32_t id : prompt) ++in_prompt_[id];
  }
}

void Sampler::accept(int32_t id) {
  const bool counts =
      params_.repetition_penalty != 1 || params_.presence_penalty != 0 || params_.frequency_penalty != 0;
  if (counts) ++seen_[id];
}

void Sampler::penalise(std::span<float> logits) const {
  const auto size = static_cast<int32_t>(logits.size());
  for (const auto& [id, bias] : params_.logit_bias) {
    if (id >= 0 && id < size) logits[id] = std::min(logits[id] + bias, kLargest);
  }
  if (params_.repetition_penalty != 1) {
    const auto repeat = [&](int32_t id) {
      float& x = logits[id];
      x = std::min(x > 0 ? x / params_.repetition_penalty : x * params_.repetition_penalty, kLargest);
    };
    for (const auto& [id, times] : in_prompt_) repeat(id);
    for (const auto& [id, times] : seen_) {
      if (!in_prompt_.count(id)) repeat(id);
    }
  }
  if (params_.presence_penalty != 0 || params_.frequency_penalty != 0) {
    for (const auto& [id, times] : seen_) {
      const float penalty = params_.presence_penalty + params_.frequency_penalty * static_cast<float>(times);
      logits[id] = std::min(logits[id] - penalty, kLargest);
    }
  }
}

int32_t Sampler::sample(std::span<float> logits) {
  penalise(logits);
  const uint64_t draw = draws_++;
  if (params_.temperature <= 0) {
    const int32_t id = most_likely(logits);
    accept(id);
    return id;
  }
  // Relative to the largest logit, so that no temperature overflows: the largest weight is 1.
  const int32_t likeliest = most_likely(logits);
  const float most = logits[likeliest];
  if (!(most > -HUGE_VALF)) {  // every token is forbidden
    accept(likeliest);
    return likeliest;
  }
  // Kept from call to call: V of each, for one thread however many requests it has.
  thread_local std::vector<Candidate> kept;
  thread_local std::vector<double> weight;
  kept.resize(logits.size());
  weight.clear();
  for (size_t i = 0; i < logits.size(); ++i)
    kept[i] = {static_cast<int32_t>(i), (logits[i] - most) / params_.temperature};
  size_t sorted = 0;  // kept[0, sorted) are in order, and better than the rest
  const auto sort_to = [&](size_t n) {
    n = std::min(n, kept.size());
    std::partial_sort(kept.begin() + static_cast<int64_t>(sorted), kept.begin() + static_cast<int64_t>(n), kept.end(),
                      better);
    sorted = n;
  };
  if (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < kept.size()) {
    sort_to(static_cast<size_t>(params_.top_k));
    kept.resize(sorted);
  }
  double total = 0;
  if (params_.top_p < 1 || params_.min_p > 0) {
    double all = 0, mass = 0;
    for (const Candidate& candidate : kept) all += std::exp(static_cast<double>(candidate.logit));
    while (weight.size() < kept.size()) {  // only as much of the vocabulary is sorted as the head needs
      if (weight.size() == sorted) sort_to(std::max<size_t>(64, 4 * sorted));
      const double w = std::exp(static_cast<double>(kept[weight.size()].logit));
      if (!weight.empty() && w < params_.min_p) break;
      weight.push_back(w);
      mass += w;
      if (params_.top_p < 1 && mass >= params_.top_p * all) break;  // the shortest head that holds top_p; at least one
    }
    total = mass;
  } else {
    weight.reserve(kept.size());
    for (const Candidate& candidate : kept)
      total += weight.emplace_back(std::exp(static_cast<double>(candidate.logit)));
  }
  const size_t end = weight.size();
  double left = uniform(seed_, draw) * total;
  size_t chosen = 0;
  while (chosen + 1 < end && left >= weight[chosen]) left -= weight[chosen++];
  accept(kept[chosen].id);
  return kept[chosen].id;
}

bool Sampler::can_sample(std::span<const float> logits) {
  bool sound = true, any = false;
  for (const float x : logits) {  // no early end, so that it becomes vector code
    sound &= x <= kLargest;       // neither NaN nor +inf
    any |= x >= -kLargest;
  }
  return sound && any;
}

TokenLogprob Sampler::logprob(std::span<const float> logits, int32_t id, int top) {
  const double all = log_sum_exp(logits);
  TokenLogprob out{id, static_cast<float>(logits[id] - all), {}};
  std::vector<Candidate> best(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) best[i] = {static_cast<int32_t>(i), logits[i]};
  const auto n = std::min(best.size(), static_cast<size_t>(std::max(top, 0)));
  std::partial_sort(best.begin(), best.begin() + static_cast<int64_t>(n), best.end(), better);
  for (size_t i = 0; i < n; ++i) out.top.emplace_back(best[i].id, static_cast<float>(best[i].logit - all));
  return out;
}

}  // namespace kvilt
