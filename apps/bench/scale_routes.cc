// apps/bench/scale_routes.cc: see scale_routes.h.
#include "apps/bench/scale_routes.h"

#include <algorithm>

#include "base/step_table.h"

namespace kvilt {
namespace {

uint64_t mixed_with(uint64_t hash, uint64_t value) {
  return StepTable<uint64_t>::mixed(hash * 0x9e3779b97f4a7c15ull + value + 1);
}

}  // namespace

std::optional<RouteRule> route_rule(std::string_view name) {
  const auto* const found = std::ranges::find(kRouteNames, name);
  if (found == std::end(kRouteNames)) return std::nullopt;
  return static_cast<RouteRule>(found - std::begin(kRouteNames));
}

void ToldIndex::tell(double due, uint16_t server, std::vector<uint64_t> stored, std::vector<uint64_t> removed) {
  if (!stored.empty() || !removed.empty()) due_.emplace(due, Told{server, std::move(stored), std::move(removed)});
}

void ToldIndex::hear(double now) {
  for (; !due_.empty() && due_.begin()->first <= now; due_.erase(due_.begin())) {
    const Told& told = due_.begin()->second;
    for (const uint64_t block : told.stored) servers_[block].push_back(told.server);
    entries_ += std::ssize(told.stored);
    for (const uint64_t block : told.removed) {
      const auto found = servers_.find(block);
      if (found == servers_.end()) continue;
      entries_ -= static_cast<int64_t>(std::erase(found->second, told.server));
      if (found->second.empty()) servers_.erase(found);
    }
  }
}

void ToldIndex::known(Blocks prompt, std::vector<size_t>& out) const {
  std::ranges::fill(out, size_t{0});
  for (size_t i = 0; i < prompt.size(); ++i) {
    const auto found = servers_.find(prompt[i]);
    if (found == servers_.end()) return;
    bool any = false;
    for (const uint16_t server : found->second) {
      if (out[server] != i) continue;
      out[server] = i + 1;
      any = true;
    }
    if (!any) return;
  }
}

HashRing::HashRing(int servers, uint64_t seed) {
  for (int s = 0; s < servers; ++s) {
    const uint64_t of_server = mixed_with(seed, static_cast<uint64_t>(s));
    for (int i = 0; i < kPoints; ++i)
      points_.emplace_back(mixed_with(of_server, static_cast<uint64_t>(i)), static_cast<uint16_t>(s));
  }
  std::ranges::sort(points_);
}

uint16_t HashRing::server(Blocks key) const {
  uint64_t hash = 0;
  for (const uint64_t block : key) hash = mixed_with(hash, block);
  const auto next = std::ranges::lower_bound(points_, hash, {}, &std::pair<uint64_t, uint16_t>::first);
  return next == points_.end() ? points_.front().second : next->second;
}

uint16_t least_loaded(std::span<const double> waiting, size_t first) {
  size_t best = first % waiting.size();
  for (size_t i = 1; i < waiting.size() && waiting[best] > 0; ++i) {
    const size_t server = (first + i) % waiting.size();
    if (waiting[server] < waiting[best]) best = server;
  }
  return static_cast<uint16_t>(best);
}

uint16_t soonest(std::span<const double> waiting, std::span<const size_t> known, size_t blocks, double block_s,
                 size_t first) {
  const auto estimate = [&](size_t server) {
    return waiting[server] + static_cast<double>(blocks - known[server]) * block_s;
  };
  size_t best = first % waiting.size();
  for (size_t i = 1; i < waiting.size(); ++i) {
    const size_t server = (first + i) % waiting.size();
    if (estimate(server) < estimate(best)) best = server;
  }
  return static_cast<uint16_t>(best);
}

}  // namespace kvilt
