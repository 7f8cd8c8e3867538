// events/kv_event.h: one KV event, and the bytes of a batch of them in vLLM's wire format.
// Source:   vLLM's kv_events (BlockStored, BlockRemoved, AllBlocksCleared and their batch), as msgspec writes them:
//           a batch is an array; its events are arrays in releases up to 0.23, maps since 0.24.
//           docs/formats/kv_events.md has the bytes.
// Not here: sockets and sequence numbers (events/publisher.h); what is told at all (index/index_listener.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace kvilt {

enum class KvEventWire { kMap, kArray };

struct KvEvent {
  enum class Kind : uint8_t { kStored, kRemoved, kCleared };
  Kind kind = Kind::kCleared;
  std::vector<uint64_t> hashes = {};  // of blocks; of a piece its id
  std::optional<uint64_t> parent = {};
  std::vector<int32_t> tokens = {};  // of kStored: those of all blocks
  int32_t block_size = 0;
  uint64_t domain = 0;  // 0: the common one; else the first bytes of its keyed digest, as an extra key of each block
};

// `ts`: seconds since 1970.
std::vector<uint8_t> encode_kv_events(KvEventWire format, double ts, std::span<const KvEvent> events);

}  // namespace kvilt
