// tier/tier.h: a place outside of memory where cached pieces are kept: what is stored of one, and what a tier does.
// Idea:       a tier knows tokens, a few numbers and bytes; what the bytes mean its caller knows. So a tier on another
//             machine can stand behind the same five functions. docs/design/disk.md.
// Invariants: a piece is immutable. Its bytes are cut into chunks of kChunkTokens tokens, and each of these into blocks
//             of one size (a layer each), which have a checksum that is kept with the piece and not with the bytes: get()
//             never returns others' bytes, or damaged ones.
// Threads:    one at a time; new_id(), owner(), part_of(), sharing(), ready(), in_blocks() and keeps_annexes() from any.
// Not here:   who writes and reads when (engine/disk_cache.h), finding (index/).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/clean_note.h"
#include "base/keyed_hash.h"
#include "base/runs.h"
#include "kvilt/result.h"

namespace kvilt {

struct StoredPiece {
  static constexpr int32_t kChunkTokens = 256;  // as an extent's slots

  uint64_t id = 0;  // never 0
  Digest maker{};   // of all that the bytes depend on: a reader with another one does not want them
  Digest domain{};  // of its tenant, namespace and salt
  // Its tenant, as Tier::owner() says it; nothing: it is nobody's, or the record is an older server's, or in a store
  // that keeps no owners.
  std::optional<Digest> owner;
  bool exact = false;         // KV of a full prefill
  bool prefix = false;        // and what it continues is stored: `parent`, or nothing where it starts at position 0
  uint64_t parent = 0;        // the piece that it continues ...
  int32_t parent_tokens = 0;  // ... after this many of its tokens
  // Of all tokens from position 0 to these (digest_behind()): two pieces may have one id, and then `parent` names both.
  std::optional<Digest> behind;  // nothing: it continues nothing, or its record is an older server's
  int32_t pos = 0;               // of its first token, where it was computed
  uint32_t token_bytes = 0;
  std::vector<int32_t> tokens;
  Runs marks;  // of its tokens; they may overlap
  std::vector<CleanNote> clean;
  uint32_t blocks = 1;              // of a chunk; token_bytes is a multiple of it
  std::vector<uint64_t> checksums;  // one a block, chunk after chunk

  int32_t count() const { return static_cast<int32_t>(tokens.size()); }
  int64_t bytes() const { return int64_t{count()} * token_bytes; }
  bool operator==(const StoredPiece&) const = default;
};

// Tokens of chunk `i` of a piece of `count` tokens.
inline Run chunk_run(int32_t i, int32_t count) {
  const int32_t begin = i * StoredPiece::kChunkTokens;
  return {begin, std::min(begin + StoredPiece::kChunkTokens, count)};
}
inline int32_t chunks_of(int32_t count) { return (count + StoredPiece::kChunkTokens - 1) / StoredPiece::kChunkTokens; }
// Blocks of all its chunks, and the bytes of one of them among its values.
inline int64_t blocks_of(const StoredPiece& piece) { return int64_t{chunks_of(piece.count())} * piece.blocks; }
inline std::span<const std::byte> block_of(const StoredPiece& piece, int64_t i, std::span<const std::byte> values) {
  const Run chunk = chunk_run(static_cast<int32_t>(i / piece.blocks), piece.count());
  const int64_t size = int64_t{chunk.size()} * piece.token_bytes / piece.blocks;
  const int64_t begin = int64_t{chunk.begin} * piece.token_bytes + i % piece.blocks * size;
  return values.subspan(static_cast<size_t>(begin), static_cast<size_t>(size));
}

class Tier {
 public:
  virtual ~Tier() = default;

  // What it holds of one maker, by id: what a piece continues comes before it. Called once, first. token_bytes: of all
  // that this maker makes; what claims another size is none of its pieces, and no more than that is ever read for one.
  virtual Result<std::vector<StoredPiece>> known(const Digest& maker, uint32_t token_bytes) = 0;
  // For the next piece; any thread.
  virtual uint64_t new_id() = 0;

  // Stores it, its checksums being those of `values`, block by block. `removed` gets what had to go for it, also where
  // that was in vain. Errors: kNotFound (what it continues is gone), kTooLong (with what it continues larger than all
  // that may be its owner's), kExhausted.
  virtual Status put(const StoredPiece& piece, std::span<const std::byte> values, std::vector<uint64_t>& removed) = 0;
  // The bytes of one chunk, in `out`, whose memory is used again. Errors: kNotFound (it was removed), kCorrupt (it is
  // removed now); out is anything then.
  virtual Status get(uint64_t id, int32_t chunk, std::vector<std::byte>& out) = 0;
  // Of one chunk the blocks [begin, end) alone, as get(). Only where in_blocks() says so are pieces stored in blocks.
  virtual bool in_blocks() const { return false; }
  virtual Status get_blocks(uint64_t id, int32_t chunk, Run blocks, std::vector<std::byte>& out);
  // Beside a piece: its annexes as bytes (annex_record.h), in place of those that it had. They go with it. Errors:
  // kNotFound (it was removed), kTooLong (more than its values: not worth their room), kExhausted.
  virtual bool keeps_annexes() const { return false; }
  virtual Status put_annexes(uint64_t id, std::span<const std::byte> annexes, std::vector<uint64_t>& removed);
  // Errors: kNotFound (it has none), kCorrupt (they are removed now; the piece stays).
  virtual Status get_annexes(uint64_t id, std::vector<std::byte>& out);
  // It was read: it, and what it continues, are the last to be removed.
  virtual void touch(uint64_t id) = 0;
  virtual void remove(uint64_t id) = 0;  // an unknown one is ignored
  virtual Status clear() = 0;            // of all makers
  // What was put is on the disk. After a power cut the system may have lost the name of a new file: that piece is a miss.
  virtual Status flush() = 0;

  virtual int64_t bytes() const = 0;  // of all makers
  virtual int64_t pieces() const = 0;

  // ---- A tier that is shared out between tenants

  // A tenant as StoredPiece::owner says it. Nothing: the tier keeps no owners, or the name is empty, and nobody's.
  virtual std::optional<Digest> owner(std::string_view) const { return std::nullopt; }
  struct Part {
    int64_t bytes = 0, share = 0;  // what it holds; what it may hold, 0: it has no share of its own
  };
  virtual Part part_of(std::string_view) const { return {}; }  // of a tenant

  // ---- A tier that others write to as well, on another machine

  struct Sharing {
    std::chrono::milliseconds news_every;  // how often news() is worth a call
    std::chrono::milliseconds patience;    // the longest that one of its answers takes
  };
  // Nothing: it is this process's own.
  virtual std::optional<Sharing> sharing() const { return std::nullopt; }
  // Whether it can be asked now. Where not, all functions fail at once; news() tries to reach it again.
  virtual bool ready() const { return true; }
  struct News {
    std::vector<StoredPiece> stored;  // of the maker that known() was asked for; what they continue comes first
    std::vector<uint64_t> removed;    // before any of these was stored
    int errors = 0;                   // failures that nobody heard of yet
    // What it lacks may be stored there now: a part of it can be asked again, or one that is away counts as empty.
    bool came_back = false;
    void remove(uint64_t id) {
      std::erase_if(stored, [&](const StoredPiece& piece) { return piece.id == id; });
      removed.push_back(id);
    }
    bool empty() const { return stored.empty() && removed.empty() && errors == 0 && !came_back; }
  };
  // What came and went since known() and the last call, by others' doing.
  virtual News news() { return {}; }
};

inline Status Tier::get_blocks(uint64_t, int32_t, Run, std::vector<std::byte>&) {
  return Error{Code::kInternal, "this tier keeps no blocks"};
}
inline Status Tier::put_annexes(uint64_t, std::span<const std::byte>, std::vector<uint64_t>&) {
  return Error{Code::kInternal, "this tier keeps no annexes"};
}
inline Status Tier::get_annexes(uint64_t, std::vector<std::byte>&) {
  return Error{Code::kNotFound, "this tier keeps no annexes"};
}

}  // namespace kvilt
