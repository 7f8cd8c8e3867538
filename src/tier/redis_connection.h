// tier/redis_connection.h: one connection to a Redis: commands go out as one pipeline, replies come back, all in time.
// Role:       hiredis connects and writes the protocol; waiting is ours. hiredis waits per read(), so a server that sends
//             a byte a second would hold it for ever.
// Invariants: ask() takes no longer than its patience and the time that the moved bytes take at 8 MB/s, and no more bytes
//             and elements than it was told, whatever comes. Whoever got an error from it must drop the connection:
//             replies may be on their way.
// Errors:     kUnavailable (no connection, closed, too slow), kCorrupt (no replies of Redis).
// Threads:    one. Cost: names are looked up by the system's resolver, which has deadlines of its own.
// Not here:   the protocol's bytes (redis_parser.h); what a reply of the kind "error" means (redis_tier.h).
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvilt/result.h"
#include "tier/redis_address.h"
#include "tier/redis_parser.h"

struct redisContext;

namespace kvilt {

using RedisCommand = std::vector<std::string_view>;

class RedisConnection {
 public:
  static constexpr int64_t kSmall = int64_t{1} << 20;  // bytes of replies, where nothing large is asked for

  static Result<std::unique_ptr<RedisConnection>> open(const RedisAddress& address, std::chrono::milliseconds patience);
  ~RedisConnection();

  // One reply for each command. most_bytes: of all replies together.
  Result<std::vector<RedisReply>> ask(std::span<const RedisCommand> commands, std::chrono::milliseconds patience,
                                      int64_t most_bytes = kSmall);

 private:
  explicit RedisConnection(redisContext* context);
  // Of one ask().
  struct Exchange {
    std::string_view out;  // that is not sent yet
    size_t replies = 0;    // that are to come
    int64_t received = 0, sent = 0, most_bytes = 0;
    std::vector<RedisReply> in;
    bool done() const { return out.empty() && in.size() == replies; }
  };
  Status exchange(Exchange& now, std::chrono::milliseconds patience);
  Status send(Exchange& now);
  Status receive(Exchange& now);

  struct Free {
    void operator()(redisContext* context) const;
  };
  const std::unique_ptr<redisContext, Free> context_;
  RedisParser parser_;
  std::vector<char> buffer_;
};

}  // namespace kvilt
