#include "forward/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/divergence.h"
#include "base/exp_small.h"

namespace kvilt {
namespace {

constexpr size_t kDrawBlock = 128;  // logits that share their largest and their mass
constexpr size_t kDrawLanes = 16;   // independent maxima and sums: the compiler makes vectors of them
constexpr int kFew = 32;            // allowed tokens of a block that are read one by one

// SplitMix64 of (seed, n): a counter-based draw, uniform in [0, 1).
double uniform(uint64_t seed, uint64_t n) {
  uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1.0p-53;
}

constexpr float kLeast = -1e30f;                               // of what may be drawn where there is nothing else
constexpr float kLargest = std::numeric_limits<float>::max();  // what penalties may make of a logit

constexpr auto kBetter = [](const auto& a, const auto& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
};

double sum_of(const float (&lanes)[kDrawLanes]) {
  double out = 0;
  for (const float lane : lanes) out += double{lane};
  return out;
}

// The sum of exp((x - most) / temperature) over a block, for the widest vectors that the machine has. All clones give the
// same bits: the order of sums is written out, and no product is fused with a sum (-ffp-contract=off).
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
double
mass_of_block(const float* x, size_t n, float most, float temperature) {
  float weight[kDrawBlock] = {};
  for (size_t i = 0; i < n; ++i) weight[i] = exp_small((x[i] - most) / temperature);
  float lanes[kDrawLanes] = {};
  for (size_t i = 0; i < kDrawBlock; i += kDrawLanes) {
    for (size_t l = 0; l < kDrawLanes; ++l) lanes[l] += weight[i + l];
  }
  return sum_of(lanes);
}

// The largest of `x`; what is not a number is passed over. Minus infinity for none.
float largest(std::span<const float> x) {
  float lanes[kDrawLanes];
  std::ranges::fill(lanes, -INFINITY);
  size_t i = 0;
  for (; i + kDrawLanes <= x.size(); i += kDrawLanes) {
    for (size_t l = 0; l < kDrawLanes; ++l) lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
  }
  for (; i < x.size(); ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  return *std::ranges::max_element(lanes);
}

}  // namespace

Sampler::Sampler(const SamplingParams& params, uint64_t seed, std::span<const int32_t> prompt)
    : params_(params), seed_(seed) {
  const int window = params_.penalty_window;
  if (window == 0) params_.repetition_penalty = 1, params_.presence_penalty = params_.frequency_penalty = 0;
  if (window > 0) {
    prompt = prompt.last(std::min(prompt.size(), static_cast<size_t>(window)));
    recent_.assign(prompt.begin(), prompt.end());
    of_prompt_ = recent_.size();
  }
  if (params_.repetition_penalty != 1) {
    for (const int32_t id : prompt) ++in_prompt_[id];
  }
}

void Sampler::forget_oldest() {
  auto& counts = of_prompt_ > 0 ? in_prompt_ : seen_;
  if (of_prompt_ > 0) --of_prompt_;
  const auto it = counts.find(recent_.front());
  if (it != counts.end() && --it->second == 0) counts.erase(it);
  recent_.pop_front();
}

void Sampler::bar(std::vector<int32_t> ids, int draws) {
  barred_ = std::move(ids);
  barred_until_ = static_cast<uint64_t>(std::max(draws, 0));
}

void Sampler::accept(int32_t id) {
  const bool counts =
      params_.repetition_penalty != 1 || params_.presence_penalty != 0 || params_.frequency_penalty != 0;
  if (!counts) return;
  ++seen_[id];
  if (params_.penalty_window < 0) return;
  recent_.push_back(id);
  if (std::cmp_greater(recent_.size(), params_.penalty_window)) forget_oldest();
}

// What is not allowed gets minus infinity. What is allowed can be drawn, even where the model rules all of it out.
void Sampler::allow_only(std::span<float> logits) const {
  std::vector<std::pair<int32_t, float>> kept;
  for (const int32_t id : params_.allowed_ids) kept.emplace_back(id, std::max(logits[id], kLeast));
  std::ranges::fill(logits, -INFINITY);
  for (const auto& [id, logit] : kept) logits[id] = logit;
}

void Sampler::penalise(std::span<float> logits) const {
  const auto size = static_cast<int32_t>(logits.size());
  if (!params_.allowed_ids.empty()) allow_only(logits);
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
  if (draws_ >= barred_until_) return;
  for (const int32_t id : barred_) {
    if (id < size) logits[id] = std::min(logits[id], kLeast);
  }
}

SamplerScratch::SamplerScratch(int64_t V) {
  const auto size = static_cast<size_t>(V), blocks = (size + kDrawBlock - 1) / kDrawBlock;
  block_reading_.reserve(blocks);
  block_most_.reserve(blocks);
  block_mass_.reserve(blocks);
  kept_.reserve(size);
  weight_.reserve(size);
}

// The candidates of one draw, best first, as far as they are asked for: those near the largest logit are gathered from
// the blocks that have any, then more, until the filters are content. The result is that of sorting them all. What a
// mask refuses is no candidate; with minus infinity it would be one that weighs nothing.
class SamplerHead {
 public:
  using Candidate = SamplerScratch::Candidate;

  SamplerHead(std::span<float> logits, TokenMask may, float temperature, SamplerScratch& scratch)
      : logits_(logits), may_(may), temperature_(temperature), s_(scratch) {
    s_.block_reading_.clear();
    s_.block_most_.clear();
    for (size_t b = 0; b * kDrawBlock < logits.size(); ++b) {
      const Reading reading = prepared(b);
      s_.block_reading_.push_back(reading);
      s_.block_most_.push_back(reading == kWhole ? largest(block(b)) : reading == kNothing ? -INFINITY : best_of(b));
    }
    most_ = largest(s_.block_most_);
    s_.kept_.clear();
    s_.weight_.clear();
  }

  float most() const { return most_; }
  // The lowest id of the largest logit; 0 where no token has one.
  int32_t best() const {
    if (most_ == -INFINITY) return 0;
    for (size_t b = 0; b < s_.block_most_.size(); ++b) {
      if (s_.block_most_[b] != most_) continue;
      int32_t id = -1;
      each(b, [&](size_t i, float x) { id = id < 0 && x == most_ ? id_of(b, i) : id; });
      if (id >= 0) return id;
    }
    return 0;
  }

  // The sum of all weights, in blocks: relative to the largest logit, so that no temperature overflows.
  double mass() {
    double out = 0;
    s_.block_mass_.clear();
    for (size_t b = 0; b < s_.block_most_.size(); ++b) out += s_.block_mass_.emplace_back(mass_of(b));
    return out;
  }
  // The token at which the sum of weights, by id, passes `left`. REQUIRES: mass() was asked.
  int32_t at_mass(double left) const {
    size_t chosen = 0;
    for (size_t b = 0; b < s_.block_mass_.size(); ++b) {
      if (s_.block_mass_[b] <= 0) continue;
      chosen = b;
      if (left < s_.block_mass_[b]) break;
      left -= s_.block_mass_[b];
    }
    int32_t id = 0;
    bool found = false;
    each(chosen, [&](size_t i, float x) {
      const double weight = exp_small(scaled(x));
      if (found || weight <= 0) return;
      id = id_of(chosen, i);
      found = left < weight;
      left -= weight;
    });
    return id;
  }

  // The n-th best, or null: there are no more.
  const Candidate* at(size_t n) {
    while (n >= s_.kept_.size()) {
      if (complete_) {
        sort_to(n);  // gathering has undone the order of those that were given out
        return nullptr;
      }
      gather();
    }
    if (n >= sorted_) sort_to(std::max({size_t{64}, 4 * sorted_, n + 1}));
    return &s_.kept_[n];
  }
  // From here on there are the n best only.
  void keep(size_t n) {
    if (n > 0 && at(n - 1)) {
      sort_to(n);
      s_.kept_.resize(n);
      sorted_ = n;
    }
    complete_ = true;
  }
  std::span<const Candidate> kept() const { return s_.kept_; }

 private:
  enum Reading : uint8_t { kWhole, kSome, kNothing };  // kSome: those that the mask allows, one by one

  std::span<float> block(size_t b) const {
    return logits_.subspan(b * kDrawBlock, std::min(kDrawBlock, logits_.size() - b * kDrawBlock));
  }
  static int32_t id_of(size_t b, size_t i) { return static_cast<int32_t>(b * kDrawBlock + i); }
  float scaled(float logit) const { return (logit - most_) / temperature_; }
  TokenMask words_of(size_t b) const {
    constexpr size_t kWords = kDrawBlock / 32;
    return may_.subspan(b * kWords, std::min(kWords, may_.size() - b * kWords));
  }

  // Says how a block is to be read. Where many tokens are allowed, the others get minus infinity, and it is read whole.
  Reading prepared(size_t b) const {
    if (may_.empty()) return kWhole;
    int32_t any = 0, all = -1;
    for (const int32_t word : words_of(b)) any |= word, all &= word;
    if (any == 0) return kNothing;
    if (all == -1) return kWhole;
    int allowed = 0;
    for (const int32_t word : words_of(b)) allowed += std::popcount(static_cast<uint32_t>(word));
    if (allowed <= kFew) return kSome;
    rule_out(words_of(b), block(b));
    return kWhole;
  }

  // (place in the block, logit) of each of its tokens that may be drawn, ascending.
  template <class Use>
  void each(size_t b, Use use) const {
    const std::span<const float> x = block(b);
    if (s_.block_reading_[b] == kWhole) {
      for (size_t i = 0; i < x.size(); ++i) use(i, x[i]);
    } else if (s_.block_reading_[b] == kSome) {
      each_allowed(b, use);
    }
  }
  template <class Use>
  void each_allowed(size_t b, Use use) const {
    const std::span<const float> x = block(b);
    size_t first = 0;
    for (const int32_t word : words_of(b)) {
      for (auto left = static_cast<uint32_t>(word); left != 0; left &= left - 1) {
        const size_t i = first + static_cast<size_t>(std::countr_zero(left));
        use(i, x[i]);
      }
      first += 32;
    }
  }

  float best_of(size_t b) const {
    float out = -INFINITY;
    each_allowed(b, [&](size_t, float x) { out = x > out ? x : out; });
    return out;
  }

  double mass_of(size_t b) const {
    if (!(scaled(s_.block_most_[b]) >= -87.f)) return 0;  // so are all of its weights
    if (s_.block_reading_[b] == kWhole) return mass_of_block(block(b).data(), block(b).size(), most_, temperature_);
    float lanes[kDrawLanes] = {};  // the same sums: those of the whole block have zeros in between
    each_allowed(b, [&](size_t i, float x) { lanes[i % kDrawLanes] += exp_small(scaled(x)); });
    return sum_of(lanes);
  }

  void gather() {
    constexpr float kFirst = 6, kLast = 96;  // e^-6 of the best; from e^-96 on, everything
    gap_ = gap_ == 0 ? kFirst : 2 * gap_;
    complete_ = gap_ >= kLast;
    const float cut = complete_ ? -INFINITY : most_ - gap_ * temperature_;
    s_.kept_.clear();
    sorted_ = 0;
    for (size_t b = 0; b < s_.block_most_.size(); ++b) {
      if (!(s_.block_most_[b] >= cut)) continue;
      each(b, [&](size_t i, float x) {
        if (x >= cut) s_.kept_.push_back({id_of(b, i), scaled(x)});
      });
    }
  }

  void sort_to(size_t n) {
    n = std::min(n, s_.kept_.size());
    if (n <= sorted_) return;
    const auto begin = s_.kept_.begin();
    std::partial_sort(begin + static_cast<int64_t>(sorted_), begin + static_cast<int64_t>(n), s_.kept_.end(), kBetter);
    sorted_ = n;
  }

  const std::span<float> logits_;
  const TokenMask may_;
  const float temperature_;
  SamplerScratch& s_;
  float most_ = 0, gap_ = 0;
  size_t sorted_ = 0;  // so many of kept_ are in order, and better than the rest
  bool complete_ = false;
};

int32_t Sampler::sample(std::span<float> logits, SamplerScratch& scratch, TokenMask may) {
  CHECK(may.empty() || (may.size() == (logits.size() + 31) / 32 && params_.allowed_ids.empty()));
  penalise(logits);  // what is added to minus infinity, or multiplied, leaves it: so the mask may come after it
  const uint64_t n = draws_++;
  const bool greedy = params_.temperature <= 0;
  int32_t id = 0;
  if (greedy && may.empty()) {
    id = most_likely(logits);
  } else {
    SamplerHead head(logits, may, greedy ? 1 : params_.temperature, scratch);
    id = greedy ? head.best() : draw(head, uniform(seed_, n), logits.size(), scratch.weight_);
  }
  accept(id);
  return id;
}

bool Sampler::filters_k(size_t V) const { return params_.top_k > 0 && static_cast<size_t>(params_.top_k) < V; }

bool Sampler::filters(size_t V) const { return filters_k(V) || params_.top_p < 1 || params_.min_p > 0; }

int32_t Sampler::draw(SamplerHead& head, double u, size_t V, std::vector<double>& weight) const {
  if (!std::isfinite(head.most())) return head.best();
  if (!filters(V)) return head.at_mass(u * head.mass());
  const bool filtered_k = filters_k(V), filtered_p = params_.top_p < 1;
  double all = 0;
  if (filtered_k) {
    head.keep(static_cast<size_t>(params_.top_k));
    for (const auto& candidate : head.kept()) all += std::exp(static_cast<double>(candidate.logit));
  } else if (filtered_p) {
    all = head.mass();
  }
  double mass = 0;
  while (const auto* candidate = head.at(weight.size())) {
    const double w = std::exp(static_cast<double>(candidate->logit));
    if (!weight.empty() && (w < params_.min_p || w == 0)) break;  // 0: what a constraint forbids
    weight.push_back(w);
    mass += w;
    if (filtered_p && mass >= params_.top_p * all) break;  // the shortest head that holds top_p; at least one
  }
  double left = u * mass;
  size_t chosen = 0;
  while (chosen + 1 < weight.size() && left >= weight[chosen]) left -= weight[chosen++];
  return head.kept()[chosen].id;
}

void rule_out(TokenMask may, std::span<float> logits) {
  CHECK(may.size() == (logits.size() + 31) / 32);
  for (size_t word = 0; word < may.size(); ++word) {
    float* const first = &logits[word * 32];
    const size_t count = std::min<size_t>(32, logits.size() - word * 32);
    auto left = ~static_cast<uint32_t>(may[word]);
    if (count < 32) left &= (uint32_t{1} << count) - 1;
    for (; left != 0; left &= left - 1) first[std::countr_zero(left)] = -INFINITY;
  }
}

bool Sampler::can_sample(std::span<const float> logits) {
  // No early end, and words instead of bools, so that it becomes vector code: 17 us for 151,936, where bools took 132.
  int32_t sound = -1, any = 0;
  for (const float x : logits) {
    sound &= x <= kLargest ? -1 : 0;  // neither NaN nor +inf
    any |= x >= -kLargest ? -1 : 0;
  }
  return sound != 0 && any != 0;
}

TokenLogprob Sampler::logprob(std::span<const float> logits, int32_t id, int top) {
  const double all = log_sum_exp(logits);
  const SamplerScratch::Candidate mine{id, logits[id]};
  TokenLogprob out{id, static_cast<float>(mine.logit - all)};
  const auto n = std::min(logits.size(), static_cast<size_t>(std::max(top, 0)));
  std::vector<SamplerScratch::Candidate> best;  // the first n, sorted: few of the others get this far
  best.reserve(n + 1);
  for (size_t i = 0; i < logits.size(); ++i) {
    const SamplerScratch::Candidate other{static_cast<int32_t>(i), logits[i]};
    out.rank += kBetter(other, mine) ? 1 : 0;
    if (n == 0 || (best.size() == n && !kBetter(other, best.back()))) continue;
    best.insert(std::ranges::upper_bound(best, other, kBetter), other);
    if (best.size() > n) best.pop_back();
  }
  for (const auto& other : best) {
    if (other.logit > -HUGE_VALF) out.top.emplace_back(other.id, static_cast<float>(other.logit - all));
  }
  return out;
}

// Penalties, bias and masks are in the logits; temperature and filters keep their order, so that the n-th best of them is
// the n-th that was kept.
TokenLogprob Sampler::drawn_logprob(std::span<const float> logits, const SamplerScratch& scratch, TokenMask may,
                                    int32_t id, int top) const {
  constexpr double kAll[] = {1};
  std::vector<float> may_come(logits.begin(), logits.end());
  if (!may.empty()) rule_out(may, may_come);
  const bool greedy = params_.temperature <= 0;
  if (!greedy && !filters(logits.size())) {
    for (float& x : may_come) x /= params_.temperature;
    return logprob(may_come, id, top);
  }
  TokenLogprob out = logprob(may_come, id, top);
  const auto kept = greedy || scratch.weight_.empty() ? std::span<const double>(kAll) : std::span(scratch.weight_);
  const double all = std::accumulate(kept.begin(), kept.end(), 0.0);
  const auto said = [&](size_t place) {
    return place < kept.size() ? static_cast<float>(std::log(kept[place] / all)) : -INFINITY;
  };
  // Drawn by chance, it was kept, though dividing by the temperature may have made it equal to better ones.
  const auto place = static_cast<size_t>(out.rank) - 1;
  out.logprob = said(greedy ? place : std::min(place, kept.size() - 1));
  out.top.resize(std::min(out.top.size(), kept.size()));
  for (size_t i = 0; i < out.top.size(); ++i) out.top[i].second = said(i);
  return out;
}

}  // namespace kvilt
