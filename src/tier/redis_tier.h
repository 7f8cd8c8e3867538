// tier/redis_tier.h: a tier in a Redis or Valkey that several processes share: what one stored the others find.
// Idea:       a piece is a record, one value for each chunk, an entry in a set of all pieces, and a line in a stream that
//             each process reads on from where it was. The set is listed at the start, after a lost connection and now
//             and then, so that nobody depends on having heard every line. What Redis drops by itself it tells nobody:
//             each news() looks whether some pieces are still there. docs/design/redis.md; bytes: docs/formats/redis.md.
//             Of a set that is larger than what one process lists the rest is not known to it.
// Invariants: records and chunks carry keyed digests of what they are and of their bytes, or are sealed with a key
//             (base/sealer.h): whatever Redis answers, get() returns what was put, or an error. Chunks are there before
//             their record, records before their line. Every call ends in time; after a failure the connection is
//             dropped, all calls fail at once, and news() connects again, later each time.
// Errors:     open: kUnavailable, kCorrupt. get and put as Tier; kUnavailable (not reachable), kExhausted (it is full),
//             kIo (it says no).
// Threads:    as Tier.
// Not here:   which of its values Redis drops when it is full: its own maxmemory policy. TLS, Cluster. Several Redis
//             (spread_tier.h).
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/sealer.h"
#include "tier/piece_id.h"
#include "tier/redis_connection.h"
#include "tier/tier.h"

namespace kvilt {

struct RedisOptions {
  RedisAddress address;
  std::optional<HashSecret> secret;         // nothing: it follows from `key`, or is kept in Redis by the first process
  std::chrono::milliseconds timeout{500};   // of one answer, beside what its bytes take (redis_connection.h)
  std::optional<HashSecret> key = {};       // what records and chunks are sealed with; nothing: they are not
  std::chrono::milliseconds list_for{250};  // by one news(), and an answer more; the rest follows
  std::chrono::milliseconds known_for{10'000};  // as known() lists; the rest is news
  // What the first process puts into Redis where that keeps the secret; nothing: one that it draws.
  std::optional<HashSecret> offered = {};
  size_t most_ids = size_t{1} << 20;  // of the set, that are listed; what is beyond them is not known
  // Away for so long it counts as having removed all that it had, which is listed again when it comes back. Nothing: it
  // does not.
  std::optional<std::chrono::milliseconds> patience = {};
};

class RedisTier : public Tier {
 public:
  static constexpr std::chrono::milliseconds kNewsEvery{100};
  static constexpr std::chrono::seconds kListEvery{60};
  static constexpr int kIdsAtOnce = 1000;  // of the set, in one answer
  static constexpr size_t kFewestLooks = 4, kMostLooks = 256;

  // Connects, unless the secret is given: then it may come later.
  static Result<std::unique_ptr<RedisTier>> open(RedisOptions options);

  // The secret that keys every digest in it.
  const HashSecret& secret() const { return secret_; }

  // What does not come in time, or where Redis cannot be reached, is news then.
  Result<std::vector<StoredPiece>> known(const Digest& maker, uint32_t token_bytes) override;
  uint64_t new_id() override;
  // removed: what it continues, where that turned out to be gone.
  Status put(const StoredPiece& piece, std::span<const std::byte> values, std::vector<uint64_t>& removed) override;
  Status get(uint64_t id, int32_t chunk, std::vector<std::byte>& out) override;
  void touch(uint64_t id) override;
  void remove(uint64_t id) override;
  // Of this maker, for all processes. Where Redis cannot be reached it is cleared when it can, before it is listed.
  Status clear() override;
  Status flush() override { return {}; }  // Redis' own affair
  int64_t bytes() const override { return bytes_; }
  int64_t pieces() const override { return static_cast<int64_t>(entries_.size()); }
  std::optional<Sharing> sharing() const override;
  bool ready() const override { return ready_; }
  News news() override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    uint64_t parent = 0;
    int32_t tokens = 0;
    uint32_t token_bytes = 0;
    std::vector<uint64_t> checksums;
    Clock::time_point touched;
    bool line_comes = false;  // its line in the stream may not have been read yet; a second one is another piece's
    int64_t bytes() const { return int64_t{tokens} * token_bytes; }
  };
  RedisTier(RedisOptions options, const HashSecret& secret, std::optional<Sealer> sealer);
  Status connect();
  Status log_in();
  Status agree_on_secret();
  void drop(const Error& why);
  // An error is one of the way to Redis: the connection is dropped.
  Result<std::vector<RedisReply>> ask_all(std::span<const RedisCommand> commands,
                                          int64_t most_bytes = RedisConnection::kSmall);
  // An error may be Redis' own.
  Result<RedisReply> ask(const RedisCommand& command);

  void count_as_empty(News& news);
  Status hear(News& news);
  Status catch_up(News& news);
  struct Listing {  // of the set, by several calls of news()
    Clock::time_point begun;
    std::string cursor = "0";
    int pages = 0;
    bool walked = false;  // all of `there` is known
    std::unordered_set<uint64_t> there;
    std::vector<uint64_t> lacking;  // whose records are to be fetched; the smallest last
  };
  Status list(News& news, Clock::time_point until);
  Status begin_listing();
  Status walk_on(News& news);
  void compare(News& news);
  Status read_log(News& news);
  bool read_line(const RedisReply& line, std::unordered_set<uint64_t>& stored, News& news);
  void collided(uint64_t id, std::unordered_set<uint64_t>& stored, News& news);
  Status fetch(std::vector<uint64_t> ids, bool lines_come, News& news);
  Status look_for_dropped(News& news);
  std::optional<StoredPiece> decode(uint64_t id, std::string_view record) const;
  void enter(const StoredPiece& piece, bool line_comes);
  bool forget(uint64_t id);

  Status store(const StoredPiece& piece, std::span<const std::byte> values);
  Status announce(const StoredPiece& piece);
  void erase(uint64_t id, int32_t chunks);
  Status go_on_clearing(Clock::time_point until);
  std::string record_value(const StoredPiece& piece) const;
  uint64_t chunk_sum(uint64_t id, int32_t chunk, std::span<const std::byte> bytes) const;
  bool is_whole(uint64_t id, int32_t chunk, uint64_t sum, std::vector<std::byte>& bytes) const;
  int64_t extra() const { return sealer_ ? Sealer::kExtra : 0; }  // bytes of a chunk beyond its values
  std::string record_key(uint64_t id) const;
  std::string chunk_key(uint64_t id, int32_t chunk) const;

  const RedisOptions options_;
  HashSecret secret_;
  const std::optional<Sealer> sealer_;
  Digest maker_{};
  uint32_t token_bytes_ = 0;
  std::string space_, all_, log_;  // beginnings of keys, and keys, of this maker and secret
  std::unique_ptr<RedisConnection> connection_;
  std::atomic<bool> ready_{false};
  Clock::time_point connected_, next_try_, next_list_;
  Clock::time_point heard_ = Clock::now();  // when all was well last
  std::chrono::milliseconds backoff_{0};
  std::optional<Listing> listing_;
  std::string read_to_;        // of the stream
  bool clear_first_ = false;   // clear() could not reach it
  bool other_secret_ = false;  // which was said
  bool cut_ = false;           // the set has more ids than were listed last ...
  bool too_many_ = false;      // ... which was said
  std::unordered_map<uint64_t, Entry> entries_;
  int64_t bytes_ = 0;
  std::vector<uint64_t> to_look_for_;  // that look_for_dropped() comes to yet
  size_t looks_ = kFewestLooks;        // pieces of its next call
  int unheard_ = 0;                    // failures, for news()
  PieceIds ids_;
};

}  // namespace kvilt
