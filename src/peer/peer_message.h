// peer/peer_message.h: what the servers of a pair say to each other, and its bytes (docs/formats/peer.md).
// Errors:  kCorrupt. Reading takes no more memory than the bytes that came.
// Not here: sealing and sending (peer_channel.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/keyed_hash.h"
#include "kvilt/result.h"

namespace kvilt {

// First, from both: KV of another maker (engine/kv_maker.h) is not asked for.
struct PeerHello {
  Digest maker{};
  uint32_t token_bytes = 0;  // KV of one token
  bool operator==(const PeerHello&) const = default;
};

// Compute these tokens and send the KV of those from position `from` on. With a method: compute them by that policy, and
// send the session that is left (docs/formats/session.md): of heads with a view what these keep.
struct PeerAsk {
  static constexpr size_t kMostMethodBytes = 4096;
  uint64_t id = 0;  // of who asks; each once in a connection
  Digest domain{};  // asks with equal ones find what each other left, and nothing else
  int32_t from = 0;
  std::vector<int32_t> tokens;
  std::vector<std::string> method = {};  // a policy's name, then its parameters, key and value in turn; empty: exact KV
  bool operator==(const PeerAsk&) const = default;
};
size_t bytes_of_method(const std::vector<std::string>& method);

// Exact KV of positions [pos, pos + count), as kv/kv_rows.h lays it out. They come in order and without gaps.
struct PeerRows {
  static constexpr int32_t kMostTokens = 256;
  uint64_t id = 0;
  int32_t pos = 0, count = 0;
  std::vector<std::byte> values;
  bool operator==(const PeerRows&) const = default;
};

// Bytes [offset, offset + bytes.size()) of a session of `size` bytes. They come in order and without gaps.
struct PeerPart {
  static constexpr size_t kMostBytes = 1 << 20;
  uint64_t id = 0;
  int64_t offset = 0, size = 0;
  std::vector<std::byte> bytes;
  bool operator==(const PeerPart&) const = default;
};

// No more rows, or parts, come.
enum class PeerEnding : uint8_t {
  kWhole = 0,    // all came
  kPart = 1,     // the rest left the cache before it was sent, or was not computed
  kRefused = 2,  // the queue is full, it is shutting down, or takes no such prompt
};
struct PeerEnd {
  uint64_t id = 0;
  PeerEnding how = PeerEnding::kWhole;
  bool operator==(const PeerEnd&) const = default;
};

// Nobody waits for it any longer. Rows that are on their way may still come.
struct PeerCancel {
  uint64_t id = 0;
  bool operator==(const PeerCancel&) const = default;
};

// Of what they bring.
inline int64_t kv_bytes(const PeerRows& rows) { return std::ssize(rows.values); }
inline int64_t kv_bytes(const PeerPart& part) { return std::ssize(part.bytes); }

using PeerMessage = std::variant<PeerHello, PeerAsk, PeerRows, PeerEnd, PeerCancel, PeerPart>;

std::vector<std::byte> bytes_of_message(const PeerMessage& message);
Result<PeerMessage> parse_message(std::span<const std::byte> bytes);

// The longest message of a side.
size_t most_bytes_of_kv(uint32_t token_bytes);  // rows or a part
size_t most_bytes_of_ask(int64_t tokens);

}  // namespace kvilt
