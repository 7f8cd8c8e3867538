// apps/bench/scale_routes.h: the simulated router: who gets a request.
// Role:       four rules that exist outside of Kvilt: in turn; who has the least work waiting; the lowest estimate of the
//             time to first token by what each server's KV events said (as Mooncake's conductor and the routers of
//             docs/deploy/router.md choose, each with weights of its own); and consistent hashing of the first blocks.
// Idea:       the index of blocks knows what was told by now: events arrive some time after what they tell. Work is known
//             at once, since a router sees its own requests.
// Invariants: what one server tells arrives in its order. The same seed gives the same ring.
// Threads:    one. Cost: of a prefix look-up, one step for each server that has a block, until none is left.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "apps/bench/scale_pool.h"

namespace kvilt {

enum class RouteRule : uint8_t { kRoundRobin, kLeastLoaded, kPrefix, kHash };
constexpr std::string_view kRouteNames[] = {"round-robin", "least-loaded", "prefix", "hash"};
std::optional<RouteRule> route_rule(std::string_view name);

// What the servers' events told.
class ToldIndex {
 public:
  void tell(double due, uint16_t server, std::vector<uint64_t> stored, std::vector<uint64_t> removed);
  // Takes in all that is due.
  void hear(double now);
  // How many leading blocks each server has; out: by server, 0 for those that are not named.
  void known(Blocks prompt, std::vector<size_t>& out) const;
  int64_t entries() const { return entries_; }  // pairs of a block and a server

 private:
  struct Told {
    uint16_t server = 0;
    std::vector<uint64_t> stored, removed;
  };
  std::multimap<double, Told> due_;
  std::unordered_map<uint64_t, std::vector<uint16_t>> servers_;
  int64_t entries_ = 0;
};

// Points of each server on a circle; a key belongs to the next point. A server more takes one part of N of the keys.
class HashRing {
 public:
  HashRing(int servers, uint64_t seed);
  uint16_t server(Blocks key) const;

 private:
  static constexpr int kPoints = 128;  // of a server
  std::vector<std::pair<uint64_t, uint16_t>> points_;
};

// waiting: seconds of work of each server. From number `first` on, around; of equal ones the first.
uint16_t least_loaded(std::span<const double> waiting, size_t first);

// The lowest estimate of waiting and of computing what is not known, at block_s seconds a block; the same for equals.
uint16_t soonest(std::span<const double> waiting, std::span<const size_t> known, size_t blocks, double block_s,
                 size_t first);

}  // namespace kvilt
