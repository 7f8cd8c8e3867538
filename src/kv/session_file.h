// kv/session_file.h: a session's KV as bytes: out to a file or a socket, and in again in another process, so that one
// may prefill and another decode. docs/formats/session.md has the bytes.
// Idea:       of each head only what it keeps is moved: all keys of a global one, sink and window of a local one. Keys
//             are moved as stored, with the shift of each placed piece: the importer rotates queries by it as the
//             exporter did, so that the next token's logits are the same bits.
// Invariants: whatever the bytes say, importing ends with a session or an error, and takes memory in proportion to the
//             pool and to kMaxPositions. Every frame has a checksum: against damage, not against forgers.
// Threads:    the thread that owns the page store.
// Cost:       a copy of every row; the largest buffer is one head's rows.
// Not here:   sampling state; who asks for it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "kv/page_table.h"
#include "kvilt/result.h"

namespace kvilt {

struct KvSession {
  std::vector<int32_t> tokens;       // of positions [0, tokens.size()): all have their KV
  std::vector<int32_t> follow;       // the tokens after them, which have none yet
  std::unique_ptr<PageTable> table;  // the next add_next() is at tokens.size()
};

struct SessionBytes {
  int64_t moved = 0;  // the whole session
  int64_t kv = 0;     // its rows of keys and values
  int64_t dense = 0;  // what these rows would be if every head kept everything
};

// Takes, or fills, all of a span.
using ByteSink = FunctionRef<Status(std::span<const std::byte>)>;
using ByteSource = FunctionRef<Status(std::span<std::byte>)>;

// tokens: those of the positions that have their KV, then `follow` tokens that have none yet. model: what must be equal
// where the session is imported (ModelInfo::fingerprint). REQUIRES: the table has every position < tokens.size() -
// follow that a head keeps, and no row is still to be computed.
Result<SessionBytes> export_session(const PageTable& table, std::span<const int32_t> tokens, const std::string& model,
                                    ByteSink sink, int32_t follow = 0);
// Errors: kCorrupt (cut short, damaged, contradicting itself), kUnsupported (another version, model, shape or KV type),
// kExhausted (the store has too few free pages: make room for the pages that the message names, and begin again), and
// those of the source.
Result<KvSession> import_session(PageStore& store, LayerRopes ropes, const std::string& model, ByteSource source);

Result<KvSession> import_session(PageStore& store, LayerRopes ropes, const std::string& model,
                                 std::span<const std::byte> bytes);

// Checks every byte of a session and says what it holds, without a page store. Errors: as import_session.
struct SessionSummary {
  std::vector<int32_t> tokens;  // the first `positions` of them have their KV
  int32_t positions = 0;
  std::vector<HeadKeep> keeps;  // layer * G + KV head
  int64_t pages = 0;            // the most that importing takes
};
Result<SessionSummary> check_session(std::span<const std::byte> bytes, const KvShape& shape, const std::string& model);
// Reads the bytes of one session of any model: frames and checksums are checked, model and shape are not.
struct ReceivedSession {
  std::vector<std::byte> bytes;
  SessionBytes sizes;
};
Result<ReceivedSession> receive_session(ByteSource source);

// To and from a file, pipe or socket.
Status write_all(int fd, std::span<const std::byte> bytes);
Status read_all(int fd, std::span<std::byte> bytes);

}  // namespace kvilt
