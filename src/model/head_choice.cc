#include "model/head_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/random.h"

namespace kvilt {
namespace {

using Scores = std::vector<double>;

void add_to(Scores& sum, const Scores& values, double weight) {
  sum.resize(std::max(sum.size(), values.size()), 0);
  for (size_t i = 0; i < values.size(); ++i) sum[i] += weight * values[i];
}

void make_global(HeadMap& map, size_t head) {
  map.heads[head] = HeadClass::kGlobal;
  map.window[head] = -1, map.sink[head] = 0;
}

std::vector<size_t> all_heads(size_t n) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

Scores ranks(const Scores& values) {
  std::vector<size_t> order = all_heads(values.size());
  std::ranges::sort(order, [&](size_t a, size_t b) { return values[a] < values[b]; });
  Scores out(values.size());
  for (size_t i = 0, end; i < order.size(); i = end) {
    for (end = i; end < order.size() && values[order[end]] == values[order[i]];) ++end;
    for (size_t j = i; j < end; ++j) out[order[j]] = static_cast<double>(i + end - 1) / 2;
  }
  return out;
}

}  // namespace

Scores head_scores(const HeadProfile& profile, std::string_view by) {
  if (by == "ablation") return profile.ablation;
  if (by == "edge-mean") return profile.edge_mean;
  if (by == "shift") return profile.shift_max;
  Scores out = profile.edge_max;
  for (size_t i = 0; i < out.size() && by == "paper"; ++i) out[i] = std::max(out[i], profile.shift_max[i]);
  return out;
}

HeadProfile mean_profile(const std::vector<HeadProfile>& all) {
  CHECK(!all.empty());
  HeadProfile out;
  out.layers = all[0].layers, out.kv_heads = all[0].kv_heads;
  const double weight = 1.0 / static_cast<double>(all.size());
  size_t windows = all[0].windows.size();
  for (const HeadProfile& one : all) windows = std::min(windows, one.windows.size());
  out.windows.assign(all[0].windows.begin(), all[0].windows.begin() + static_cast<long>(windows));
  out.inside.resize(windows);
  double tokens = 0;
  for (const HeadProfile& one : all) {
    tokens += weight * one.tokens;
    add_to(out.ablation, one.ablation, weight);
    add_to(out.edge_max, one.edge_max, weight);
    add_to(out.edge_mean, one.edge_mean, weight);
    add_to(out.shift_max, one.shift_max, weight);
    add_to(out.shift_mean, one.shift_mean, weight);
    for (size_t w = 0; w < windows; ++w) add_to(out.inside[w], one.inside[w], weight);
  }
  out.tokens = static_cast<int>(std::lround(tokens));
  return out;
}

double score_stability(const std::vector<HeadProfile>& all, std::string_view by) {
  double sum = 0;
  int pairs = 0;
  for (size_t a = 0; a < all.size(); ++a) {
    for (size_t b = a + 1; b < all.size(); ++b, ++pairs)
      sum += rank_correlation(head_scores(all[a], by), head_scores(all[b], by));
  }
  return pairs > 0 ? sum / pairs : 0;
}

double rank_correlation(const Scores& a, const Scores& b) {
  const Scores x = ranks(a), y = ranks(b);
  const double mean = (static_cast<double>(x.size()) - 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean);
    xx += (x[i] - mean) * (x[i] - mean);
    yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

HeadMap choose_head_map(const HeadProfile& profile, const Scores& score, const HeadChoice& choice) {
  HeadMap map = uniform_head_map(profile.layers, profile.kv_heads, HeadClass::kLocal, choice.window, choice.sink);
  std::vector<size_t> order = all_heads(score.size());
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return score[a] > score[b]; });
  auto open = static_cast<size_t>(std::llround(choice.share * static_cast<double>(order.size())));
  if (choice.loss > 0) {
    double left = std::accumulate(score.begin(), score.end(), 0.0);
    for (open = 0; open < order.size() && left > choice.loss; ++open) left -= score[order[open]];
  }
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t head = order[i];
    if (i < open) {
      make_global(map, head);
    } else if (choice.window_mass > 0) {  // where none holds the mass: the longest
      for (size_t w = 0; w < profile.windows.size(); ++w) {
        map.window[head] = std::max(choice.window, profile.windows[w]);
        if (profile.inside[w][head] >= choice.window_mass) break;
      }
    }
  }
  return map;
}

HeadMap control_head_map(int L, int G, const HeadControl& control) {
  HeadMap map = uniform_head_map(L, G, HeadClass::kLocal, control.window, control.sink);
  std::vector<size_t> order = all_heads(map.heads.size());
  size_t open = std::min(control.open, order.size());
  if (control.global == "all") open = order.size();
  if (control.global == "none") open = 0;
  if (control.global == "last") std::ranges::reverse(order);
  if (control.global == "random") {
    std::mt19937_64 rng(control.seed);
    shuffle(order, rng);
  }
  for (size_t i = 0; i < open; ++i) make_global(map, order[i]);
  return map;
}

HeadMap control_of(const HeadMap& map, std::string_view global, uint64_t seed) {
  HeadControl control{global, static_cast<size_t>(map.count(HeadClass::kGlobal)), seed};
  int64_t windows = 0, sinks = 0;
  const int64_t local = map.count(HeadClass::kLocal);
  for (size_t i = 0; i < map.heads.size(); ++i) {
    if (map.heads[i] == HeadClass::kLocal) windows += map.window[i], sinks += map.sink[i];
  }
  if (local > 0) {
    control.window = static_cast<int32_t>(windows / local);
    control.sink = static_cast<int32_t>(sinks / local);
  }
  return control_head_map(map.L, map.G, control);
}

}  // namespace kvilt
