// index/index_listener.h: who is told what enters and leaves the index, so that others can keep a copy of it.
// Idea:       what others can use is told: the blocks of exact chains (a block is told when its key gets its first
//             posting and when it loses its last one, so that twins do not matter), the blocks of approximate chains,
//             and approximate pieces. docs/design/events.md.
// Invariants: a block is told after the one before it on its chain, unless that one was never known. What is told twice
//             is the same. Calls come in the order in which the index changed.
// Threads:    the index's owner calls. Nothing may block, and nothing may throw.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "index/cached_segment.h"

namespace kvilt {

// Where what is told belongs.
struct ToldDomain {
  uint64_t digest = 0;  // the first 8 bytes of the domain's keyed digest: names it, and says nothing about it
  bool open = true;     // its requests named no tenant, namespace or salt
  bool exact = true;    // KV that equals a full prefill of its chain
};

// Blocks of 16 tokens that follow each other on one chain.
struct ToldBlocks {
  std::optional<uint64_t> parent;  // the key of the block before the first; none: they begin a chain
  std::span<const uint64_t> keys;
  std::span<const int32_t> tokens;  // of all blocks, one after the other
};

class IndexListener {
 public:
  virtual ~IndexListener() = default;
  virtual void blocks_stored(const ToldDomain& domain, const ToldBlocks& blocks) noexcept = 0;
  virtual void blocks_removed(const ToldDomain& domain, std::span<const uint64_t> keys) noexcept = 0;
  // An approximate segment that is found anywhere. A segment that loses its end is told again, shorter.
  virtual void piece_stored(const ToldDomain& domain, SegmentId id, std::span<const int32_t> tokens) noexcept = 0;
  virtual void piece_removed(const ToldDomain& domain, SegmentId id) noexcept = 0;
  virtual void cleared() noexcept = 0;  // nothing of what was told is there any more
};

}  // namespace kvilt
