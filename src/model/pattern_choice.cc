#include "model/pattern_choice.h"

#include <algorithm>

#include "base/check.h"

namespace kvilt {
namespace {

using Is = HeadPattern::Is;

constexpr int kTile = 64;

size_t heads_of(const SparseProfile& profile) {
  return static_cast<size_t>(profile.layers) * static_cast<size_t>(profile.kv_heads);
}

}  // namespace

std::vector<HeadPattern> candidate_patterns(int tokens) {
  std::vector<HeadPattern> out;
  const auto is_power = [](int keys) { return (keys & (keys - 1)) == 0; };
  for (int keys = kTile; keys <= 2 * kTile || keys < tokens; keys = keys == kTile    ? 2 * kTile
                                                                    : is_power(keys) ? keys / 2 * 3
                                                                                     : keys / 3 * 4) {
    out.push_back({.is = Is::kAShape, .sink = kTile, .window = keys});
    out.push_back({.is = Is::kBlocks, .blocks = keys / kTile});
    // Columns are exact keys; a distance is rounded up to a tile of them.
    out.push_back({.is = Is::kLines, .columns = keys / 8, .distances = keys});
    out.push_back({.is = Is::kLines, .columns = keys / 2, .distances = keys / 2});
    out.push_back({.is = Is::kLines, .columns = keys, .distances = keys / 8});
  }
  return out;
}

SparseProfile mean_profile(const std::vector<SparseProfile>& all) {
  CHECK(!all.empty());
  SparseProfile out = all[0];
  for (size_t n = 1; n < all.size(); ++n) {
    CHECK(all[n].patterns == out.patterns && all[n].held.size() == out.held.size());
    out.tokens += all[n].tokens;
    for (size_t i = 0; i < out.held.size(); ++i) {
      out.held[i] += all[n].held[i];
      out.cost[i] += all[n].cost[i];
    }
    for (size_t head = 0; head < out.rows.size(); ++head) out.rows[head] += all[n].rows[head];
  }
  const auto n = static_cast<double>(all.size());
  out.tokens /= static_cast<int>(all.size());
  for (double& held : out.held) held /= n;
  for (double& cost : out.cost) cost /= n;
  return out;
}

SparseMap choose_sparse_map(const SparseProfile& profile, double share, std::optional<Is> only) {
  const size_t n = profile.patterns.size();
  SparseMap out = uniform_sparse_map(profile.layers, profile.kv_heads, {});
  for (size_t head = 0; head < heads_of(profile); ++head) {
    const double *held = &profile.held[head * n], *cost = &profile.cost[head * n];
    const auto better = [&](size_t a, size_t b) {
      const bool fits = cost[a] <= share;
      if (fits != (cost[b] <= share)) return fits;
      return fits ? held[a] > held[b] : cost[a] < cost[b];
    };
    size_t best = n;
    for (size_t p = 0; p < n; ++p) {
      if (only && profile.patterns[p].is != *only) continue;
      if (best == n || better(p, best)) best = p;
    }
    CHECK(best < n);
    out.heads[head] = profile.patterns[best];
  }
  return out;
}

HeldAt held_at(const SparseProfile& profile, const SparseMap& map) {
  const size_t n = profile.patterns.size();
  CHECK(map.heads.size() == heads_of(profile));
  HeldAt out;
  double rows = 0;
  for (size_t head = 0; head < map.heads.size(); ++head) {
    const auto at = std::ranges::find(profile.patterns, map.heads[head]);
    CHECK(at != profile.patterns.end());
    const size_t i = head * n + static_cast<size_t>(at - profile.patterns.begin());
    out.held += profile.rows[head] * profile.held[i];
    out.cost += profile.rows[head] * profile.cost[i];
    rows += profile.rows[head];
  }
  return rows > 0 ? HeldAt{out.held / rows, out.cost / rows} : out;
}

}  // namespace kvilt
