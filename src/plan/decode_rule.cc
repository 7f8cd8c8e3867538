#include "plan/decode_rule.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <deque>
#include <functional>
#include <numeric>
#include <random>

#include "base/check.h"

namespace kvilt {
namespace {

// Over the `pool` neighbours of each, itself in the middle. O(keys), whatever the pool.
void add_pooled(std::span<const double> score, int32_t pool, bool max, std::vector<double>& out) {
  const int64_t n = std::ssize(score), reach = pool / 2;
  std::deque<int64_t> falling;  // of the neighbours so far, those that are larger than all after them
  double sum = 0;               // beyond the ends there is nothing, which counts as 0
  for (int64_t next = 0, j = 0; j < n; ++j) {
    for (; next <= std::min(n - 1, j + reach); ++next) {
      sum += score[next];
      while (!falling.empty() && score[falling.back()] <= score[next]) falling.pop_back();
      falling.push_back(next);
    }
    if (falling.front() < j - reach) falling.pop_front();
    out.push_back(max ? score[falling.front()] : sum / pool);
    if (j >= reach) sum -= score[j - reach];
  }
}

// The middle by itself, and what is before and behind it: the last rows weigh their own keys so much that with these as
// neighbours the middle's last keys were always taken.
std::vector<double> pooled(const DecodeRule& rule, std::span<const double> score, Run middle) {
  std::vector<double> out;
  out.reserve(score.size());
  const auto n = static_cast<int32_t>(score.size());
  for (const Run part : {Run{0, middle.begin}, middle, Run{middle.end, n}})
    add_pooled(score.subspan(static_cast<size_t>(part.begin), static_cast<size_t>(part.size())), rule.pool,
               rule.pool_max, out);
  return out;
}

// Numbers in the order of the scores.
uint64_t rank_bits(double score) {
  const auto bits = std::bit_cast<uint64_t>(score + 0.0);  // one zero
  return bits >> 63 != 0 ? ~bits : bits | uint64_t{1} << 63;
}

// The rank bits of the n-th highest score: digit by digit from the highest, among those that share the digits so far. A
// choice among 16,000 keys takes a tenth of the time of nth_element, whose every second branch is guessed wrong.
// REQUIRES: 0 < n <= scores.
uint64_t nth_highest(std::span<const double> score, int64_t n) {
  constexpr int kDigit = 12;
  std::vector<uint64_t> same;
  for (int shift = 64 - kDigit;; shift = std::max(0, shift - kDigit)) {
    std::array<int32_t, 1 << kDigit> counts = {};
    const auto digit = [shift](uint64_t bits) { return bits >> shift & ((1 << kDigit) - 1); };
    if (same.empty()) {
      for (const double s : score) ++counts[digit(rank_bits(s))];
    } else {
      for (const uint64_t bits : same) ++counts[digit(bits)];
    }
    uint64_t d = counts.size() - 1;
    for (; counts[d] < n; --d) n -= counts[d];
    if (same.empty()) {
      for (const double s : score) {
        if (digit(rank_bits(s)) == d) same.push_back(rank_bits(s));
      }
    } else {
      std::erase_if(same, [&](uint64_t bits) { return digit(bits) != d; });
    }
    if (same.size() == 1 || shift == 0) return same.front();
  }
}

// The n keys of [begin, begin + score.size()) with the highest scores.
Runs best(std::span<const double> score, int32_t begin, int64_t n) {
  const int32_t size = static_cast<int32_t>(score.size());
  if (n >= size) return normalize({{begin, begin + size}});
  if (n <= 0) return {};
  if (n == size - 1) {  // as H2O chooses at every row; the last of the lowest goes
    const auto lower = [](double a, double b) { return rank_bits(a) < rank_bits(b); };
    const auto lowest = std::ranges::min_element(score.rbegin(), score.rend(), lower);
    const int32_t out = begin + static_cast<int32_t>(score.rend() - lowest) - 1;
    return normalize({{begin, out}, {out + 1, begin + size}});
  }
  const uint64_t last = nth_highest(score, n);
  int64_t equal = n;  // how many of those at `last` are taken
  for (const double s : score) equal -= rank_bits(s) > last;
  Runs out;
  for (int32_t j = 0; j < size; ++j) {
    const uint64_t bits = rank_bits(score[j]);
    if (bits < last || (bits == last && equal-- <= 0)) continue;
    if (!out.empty() && out.back().end == begin + j) {
      ++out.back().end;
    } else {
      out.push_back({begin + j, begin + j + 1});
    }
  }
  return out;
}

// How many of the layer's heads * base best keys each head has, over all heads' scores together.
std::vector<int64_t> shares(std::span<const std::span<const double>> scores, int64_t base) {
  struct Key {
    double score;
    int32_t head, at;
  };
  std::vector<Key> all;
  for (size_t g = 0; g < scores.size(); ++g) {
    for (size_t j = 0; j < scores[g].size(); ++j)
      all.push_back({scores[g][j], static_cast<int32_t>(g), static_cast<int32_t>(j)});
  }
  const int64_t n = std::min(std::ssize(all), base * std::ssize(scores));
  const auto before = [](const Key& a, const Key& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.at != b.at ? a.at < b.at : a.head < b.head;  // equal scores: equal budgets
  };
  if (n < std::ssize(all)) std::ranges::nth_element(all, all.begin() + n, before);
  std::vector<int64_t> out(scores.size(), 0);
  for (int64_t i = 0; i < n; ++i) ++out[all[i].head];
  return out;
}

// Each head's own share of `base` plus its part of the rest. They sum to heads * base as far as there are scores for
// it; with own_share 1 a head may be given more than it has.
std::vector<int64_t> split(std::span<const std::span<const double>> scores, int64_t base, double own_share) {
  const size_t heads = scores.size();
  std::vector<int64_t> out(heads, base);
  if (own_share >= 1) return out;
  const auto most = [&](size_t g) { return std::ssize(scores[g]); };
  const std::vector<int64_t> won = shares(scores, base);
  std::vector<double> exact(heads);
  int64_t left = base * static_cast<int64_t>(heads);
  const int64_t own = static_cast<int64_t>(std::floor(static_cast<double>(base) * own_share));
  for (size_t g = 0; g < heads; ++g) {
    const double rest = static_cast<double>(base - own) / static_cast<double>(std::max<int64_t>(1, base));
    exact[g] = static_cast<double>(own) + static_cast<double>(won[g]) * rest;
    out[g] = std::min<int64_t>(most(g), static_cast<int64_t>(std::floor(exact[g])));
    left -= out[g];
  }
  while (left > 0) {  // what rounding left over: to the largest fraction that has room
    size_t to = heads;
    for (size_t g = 0; g < heads; ++g) {
      const auto lacks = [&](size_t h) { return exact[h] - static_cast<double>(out[h]); };
      if (out[g] < most(g) && (to == heads || lacks(g) > lacks(to))) to = g;
    }
    if (to == heads) break;
    ++out[to];
    --left;
  }
  return out;
}

// What the middle has to add to the keys outside of it, so that these hold the share of all and of what is lost.
// Nothing but zeros: no end.
double lacking(std::span<const double> score, Run middle, double share, double lost) {
  double outside = 0, inside = 0;
  for (int32_t j = 0; j < std::ssize(score); ++j) (j < middle.begin || j >= middle.end ? outside : inside) += score[j];
  const double all = outside + inside + lost;
  return all > 0 ? share * all - outside : HUGE_VAL;
}

// Of the n highest scores, how many it takes until they sum to `aim`, highest first; if they do not, all.
int64_t fewest(std::vector<double> score, int64_t n, double aim) {
  n = std::min(n, std::ssize(score));
  std::ranges::partial_sort(score, score.begin() + n, std::greater());
  int64_t taken = 0;
  for (double sum = 0; taken < n && sum < aim; ++taken) sum += score[taken];
  return taken;
}

}  // namespace

// As PyramidKV's code has it, whose steps are whole numbers of keys.
int32_t DecodeRule::budget_of(int layer, int num_layers, int32_t keys) const {
  const int32_t always = sink + recent, chosen = std::max(0, budget - always);
  const bool falls = pyramid > 1 && num_layers > 1 && keys > budget && keys >= 2 * chosen;
  if (!falls) return always + chosen;
  const auto least = static_cast<int32_t>(std::floor(chosen / pyramid));
  const int32_t first = std::min(2 * chosen - least, keys - always), last = 2 * chosen - first;
  return always + first - (first - last) / (num_layers - 1) * layer;
}

Runs DecodeRule::looking(int32_t prompt_len, int32_t prefill_len) const {
  if (by == By::kAllRows) return {{0, prefill_len}};
  if (by != By::kAttention) return {};
  const bool once = every == 0;
  const int32_t first = once ? prompt_len + dense_rows : std::max(prompt_len + dense_rows, prefill_len);
  const bool takes_all = first <= sink + recent || (top_p >= 1 && first <= budget);  // whatever is seen
  const Run rows{std::max(0, first - queries), std::min(first, prefill_len)};
  return rows.begin >= rows.end || (once && takes_all) ? Runs{} : Runs{rows};
}

std::vector<Runs> choose_keys(const DecodeRule& rule, int layer, int num_layers,
                              std::span<const std::vector<double>> scores, int32_t keys, std::span<const double> lost) {
  const size_t heads = scores.size();
  if (rule.takes_all(layer, num_layers, keys)) return std::vector<Runs>(heads, keys > 0 ? Runs{{0, keys}} : Runs{});
  const int32_t budget = std::min(rule.budget_of(layer, num_layers, keys), keys);
  const bool nearest = rule.by == DecodeRule::By::kNearest;
  const int32_t recent = nearest ? budget - rule.sink : rule.recent;
  const auto always = [&](int32_t n) { return normalize({{0, rule.sink}, {n - recent, n}}); };
  if (nearest) return std::vector<Runs>(heads, always(keys));
  std::vector<std::vector<double>> made(heads);  // where the scores are not taken as they are
  std::vector<std::span<const double>> of(heads);
  std::vector<Runs> out(heads);
  std::vector<double> aims(heads);
  std::mt19937_64 random(rule.seed * 1000003 + static_cast<uint64_t>(layer) * 7919 + static_cast<uint64_t>(keys));
  for (size_t g = 0; g < heads; ++g) {
    const bool blind = rule.by == DecodeRule::By::kRandom;
    const int32_t n = blind ? keys : static_cast<int32_t>(scores[g].size());
    CHECK(n == keys || (rule.by == DecodeRule::By::kAllRows && n >= rule.sink + recent && n < keys));
    const Run middle{rule.sink, n - recent};
    out[g] = always(n);
    if (blind) {
      made[g].resize(static_cast<size_t>(middle.size()));
      for (double& score : made[g]) score = static_cast<double>(random() >> 11);
      of[g] = made[g];
    } else {
      if (rule.pool > 1) made[g] = pooled(rule, scores[g], middle);
      const std::span<const double> all = rule.pool > 1 ? made[g] : scores[g];
      of[g] = all.subspan(static_cast<size_t>(middle.begin), static_cast<size_t>(middle.size()));
      if (rule.top_p < 1) aims[g] = lacking(all, middle, rule.top_p, lost.empty() ? 0 : lost[g]);
    }
  }
  std::vector<int64_t> sizes = split(of, budget - rule.sink - recent, rule.own_share);
  for (size_t g = 0; g < heads; ++g) {
    if (rule.top_p < 1) sizes[g] = fewest({of[g].begin(), of[g].end()}, sizes[g], aims[g]);
    out[g] = unite(out[g], best(of[g], rule.sink, sizes[g]));
  }
  return out;
}

std::vector<Runs> choose_pages(const DecodeRule& rule, int layer, int num_layers,
                               std::span<const std::vector<double>> scores, int32_t keys) {
  if (rule.takes_all(layer, num_layers, keys)) return choose_keys(rule, layer, num_layers, scores, keys);
  const int32_t newest = (keys - 1) / rule.page, begin = newest * rule.page;
  const int32_t more = (rule.budget_of(layer, num_layers, keys) - (keys - begin)) / rule.page;
  CHECK(more >= 0);
  std::vector<Runs> out;
  for (const std::vector<double>& of : scores) {
    CHECK(std::ssize(of) == newest + 1);
    Runs kept = best(std::span(of).first(static_cast<size_t>(newest)), 0, more);
    for (Run& run : kept) run = {run.begin * rule.page, run.end * rule.page};
    out.push_back(unite(kept, Runs{{begin, keys}}));
  }
  return out;
}

Runs heaviest(const Runs& candidates, std::span<const double> weights, double share) {
  CHECK(std::ssize(weights) == count(candidates));
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (!(all > 0)) return candidates;
  const int64_t n = fewest({weights.begin(), weights.end()}, std::ssize(weights), share * all);
  const Runs ranks = best(weights, 0, n);
  Runs out;
  int32_t rank = 0;  // of the run's first candidate
  for (const Run& run : candidates) {
    for (const Run& part : intersect(ranks, Runs{{rank, rank + run.size()}}))
      out.push_back({part.begin - rank + run.begin, part.end - rank + run.begin});
    rank += run.size();
  }
  return normalize(std::move(out));
}

}  // namespace kvilt
