// apps/bench/scale_fleet.h: a simulated fleet: a trace's requests, a router, servers with pools, perhaps one Redis.
// Role:       `kvilt bench scale` and its tests. Pure: the same input gives the same numbers.
// Idea:       requests arrive in the order of their times. Each is given to a server, waits until those before it there
//             are done, finds a prefix in the server's pool, reads on from Redis if that is faster than computing, and
//             computes the rest. What it has computed is in its pool at once (who comes next there waits for it anyway),
//             in Redis when it was written and announced, and in the router's index when the event has arrived.
// Invariants: a prompt's blocks are cached here, read from Redis, or computed. What is read was written before.
// Threads:    one. Cost: some three microseconds a block with extents_pool(), a hundred with engine_pool().
// Not here:   answers: they take no time and no room. Several prefills at once on a server. What Redis can bear: the
//             outcome says what is asked of it. A request that waits is looked up by what those before it will have
//             done when it begins: those that come after it and are done sooner, elsewhere, do not count.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <unordered_map>
#include <vector>

#include "apps/bench/eviction_traces.h"
#include "apps/bench/scale_routes.h"

namespace kvilt {

struct FleetTraffic {
  int copies = 1;       // of the trace, each with texts of its own
  double share = 1;     // of the trace's conversations, by a hash of the first block that is not common
  double shift_s = 60;  // copies begin within so many seconds
  double until_s = 0;   // of the trace only its first seconds; 0: all
  double slow = 1;      // times are so many times as long
  double common = .05;  // a block that this share of the requests has is the same in all copies (a system prompt)
  uint64_t seed = 1;
};

// Requests in the order of their times.
class Traffic {
 public:
  // REQUIRES: the trace has times.
  Traffic(const Trace& trace, const FleetTraffic& options);
  struct Arrival {
    double at = 0;
    std::vector<uint64_t> blocks;
  };
  bool next(Arrival& out);  // false: there are no more
  size_t common() const { return common_; }

 private:
  struct Place {
    double at = 0;
    int copy = 0;
    size_t request = 0;
    auto operator<=>(const Place&) const = default;
  };
  void take(const std::vector<uint64_t>& request, double at);
  double time(int copy, size_t request) const;
  FleetTraffic options_;
  std::vector<double> seconds_;
  std::vector<std::vector<uint64_t>> requests_;  // with blocks numbered anew: common ones first, from 0 on
  size_t blocks_ = 0, common_ = 0;
  std::vector<double> shifts_;
  std::priority_queue<Place, std::vector<Place>, std::greater<>> next_;
};

constexpr int kMostServers = UINT16_MAX;

struct FleetOptions {
  int servers = 1;  // kMostServers at most
  RouteRule rule = RouteRule::kRoundRobin;
  int block_tokens = 512;
  int64_t pool_tokens = 2'000'000;  // of each server
  bool engine = false;              // engine_pool(); else extents_pool()
  double prefill = 60'000;          // tokens a second that a server computes; 0: it takes no time
  double event_delay = .1;          // seconds
  int hash_blocks = 2;              // of the prompt, which kHash looks at
  uint64_t seed = 1;
  // The shared store.
  bool redis = false;
  double token_bytes = 12'288;
  double io = 1e9;          // bytes a second that a server reads, and writes beside that; 0: it takes no time
  double redis_delay = .2;  // seconds from written to known by all
  int64_t redis_bytes = 0;  // 0: no bound
};

// A sum over time, and its busiest second.
class Flow {
 public:
  void add(double at, double amount) { total_ += amount, by_second_[static_cast<int64_t>(at)] += amount; }
  double total() const { return total_; }
  double busiest() const;

 private:
  double total_ = 0;
  std::unordered_map<int64_t, double> by_second_;
};

struct FleetOutcome {
  int64_t requests = 0;
  double seconds = 1;  // from the first arrival to the last, at least 1
  // Blocks of prompts.
  int64_t blocks = 0, local = 0, read = 0, computed = 0;
  int64_t elsewhere = 0;  // of the computed ones, those that a pool had then: another's, or its own behind a gap
  int64_t twins = 0;      // of the computed ones, those that another server had computed and not announced yet
  double share(int64_t of) const { return blocks > 0 ? static_cast<double>(of) / static_cast<double>(blocks) : 0; }
  double hit_rate() const { return share(local + read); }

  std::vector<double> busy;                      // seconds of each server
  double waited_median_s = 0, waited_p99_s = 0;  // before a prefill begins
  double busy_share() const;                     // of the time, the mean server
  double worst_over_mean() const;

  Flow stored, removed;   // blocks that events told of
  Flow told;              // both: each has busiest seconds of its own
  int64_t told_most = 0;  // pairs of block and server that a subscriber to all has to know, at most

  // Redis.
  Flow in, out;              // bytes of KV
  Flow written;              // pieces
  int64_t lost = 0;          // blocks that waited to be written for longer than a pool lasts
  double records = 0;        // bytes: of one reader that fetches each piece's record and line
  double piece_seconds = 0;  // pieces that are there, over time
  int64_t held_blocks = 0, held_pieces = 0, put_blocks = 0, dropped_blocks = 0;  // at the end; all
};

// REQUIRES: options are in range; nothing else.
FleetOutcome simulate_fleet(Traffic traffic, const FleetOptions& options);

}  // namespace kvilt
