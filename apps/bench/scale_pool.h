// apps/bench/scale_pool.h: one simulated server's cache: which blocks of a trace are in its pool.
// Role:       a request's blocks are looked up, and those that are missing enter; what leaves for them is evicted in the
//             engine's order. What is missing may be computed or loaded: here it is the same.
// Two kinds:  engine_pool() is the content cache of the engine (engine/content_cache.h: index, extents, eviction, ghosts,
//             and what the index tells its listener) over token ids that stand for the blocks, kIds for each block, so
//             that a block is an extent. extents_pool() has the same extents, order and ghosts (kv/idle_extents.h,
//             kv/ghost_list.h) and a hash table for the index: a small part of the time. No KV is written in either.
// Invariants: a block's id says all that stands before it too, as in Mooncake's traces. What a request uses does not
//             wait meanwhile; its end waits before its beginning, as in the engine.
// Threads:    one.
// Not here:   who gets a request (scale_fleet.h), when.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvilt {

using Blocks = std::span<const uint64_t>;

class SimulatedPool {
 public:
  struct Changes {
    std::vector<uint64_t> stored, removed;  // in order
  };
  virtual ~SimulatedPool() = default;
  // Blocks from the prompt's first on that it has.
  virtual size_t known(Blocks prompt) const = 0;
  // All of the prompt's blocks, as far as the pool has room for them, are in it afterwards. Adds to `changes`.
  virtual void serve(Blocks prompt, Changes& changes) = 0;
};

// REQUIRES: blocks > 0; blocks are numbered below 2^61.
std::unique_ptr<SimulatedPool> extents_pool(int64_t blocks);
std::unique_ptr<SimulatedPool> engine_pool(int64_t blocks);

}  // namespace kvilt
