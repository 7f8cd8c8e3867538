// kv/session_reader.h: reads a session's bytes (docs/formats/session.md) frame by frame, and refuses contradictions.
// Role:       what import_session, check_session and receive_session share; it needs no page store.
// Invariants: memory grows with the bytes that really come, not with what a header promises; every frame's checksum is
//             compared.
// Not here:   pages (session_file.cc).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "kv/page_table.h"
#include "kvilt/result.h"

namespace kvilt {

struct SessionHeader {
  char magic[8];
  uint32_t version, kv_type, L, G, E, positions, pieces, follow;
  uint64_t index_runs;
  uint8_t model[16];
};
static_assert(sizeof(SessionHeader) == 64);

// Positions [pos, pos + count), whose keys were rotated at positions lower by `shift`.
struct SessionPiece {
  int32_t pos, count, shift;
};

// Positions [pos, pos + count) of a layer, whatever its heads keep of them, and the number of their piece.
struct SessionRun {
  static constexpr int32_t kOwn = -1;  // in no piece: the keys are rotated at their own positions
  int32_t pos, count, source;
};
static_assert(sizeof(SessionPiece) == 12 && sizeof(SessionRun) == 12 && sizeof(HeadKeep) == 8);

// The header of a session in this pool, without its sizes.
SessionHeader session_header(const KvShape& shape, const std::string& model);

// The positions before `next` that the row at `next` sees.
Runs kept_positions(const HeadKeep& keep, int32_t next);

// A ByteSource that reads from memory; bytes: what has not been read yet.
struct FromMemory {
  std::span<const std::byte> bytes;
  Status operator()(std::span<std::byte> part);
};

class SessionReader {
 public:
  using ByteSource = FunctionRef<Status(std::span<std::byte>)>;
  static constexpr uint32_t kMaxPositions = 1 << 24;
  static constexpr uint64_t kMaxIndexRuns = 1 << 22;

  explicit SessionReader(ByteSource source) : source_(source) {}

  // Reads frames 1 to 3. expected: what session_header() says of the pool; null: any session is taken.
  Status read_head(const SessionHeader* expected);
  // Reads the next head's frame: the keys of `parts`, in order, then their values.
  struct Rows {
    std::vector<SessionRun> parts;
    size_t count = 0, row_bytes = 0;
    const std::byte *k = nullptr, *v = nullptr;  // valid until the next call
  };
  Result<Rows> read_rows(int layer, int head);

  int L() const { return static_cast<int>(header_.L); }
  int G() const { return static_cast<int>(header_.G); }
  int32_t positions() const { return static_cast<int32_t>(header_.positions); }
  int32_t follow() const { return static_cast<int32_t>(header_.follow); }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<HeadKeep>& keeps() const { return keeps_; }
  const HeadKeep& keep(int layer, int head) const { return keeps_[layer * G() + head]; }
  const std::vector<SessionPiece>& pieces() const { return pieces_; }
  const std::vector<SessionRun>& index(int layer) const { return index_[layer]; }

 private:
  Status receive(size_t size, const char* what);
  Status read_header(const SessionHeader* expected);
  Status check_expected(const SessionHeader& expected) const;
  Status read_meta();
  Status read_index();
  std::vector<SessionRun> parts_of(int layer, int head) const;
  template <class T>
  T take();

  const ByteSource source_;
  SessionHeader header_{};
  std::vector<std::byte> frame_;
  size_t at_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<SessionPiece> pieces_;
  std::vector<HeadKeep> keeps_;
  std::vector<std::vector<SessionRun>> index_;  // by layer
};

Error corrupt_session(const char* what);

}  // namespace kvilt
