// tier/redis_parser.h: the bytes that a Redis sends, as replies.
// Role:       hiredis reads the protocol, objects are ours: its own ones end the process where an array that is claimed
//             has no memory.
// Invariants: of whatever bytes, at most kMostElements elements are made of one reply, and no more text than came.
// Errors:     kCorrupt (no replies of Redis, or more than any that was asked for), kExhausted. Nothing is read after one.
// Threads:    one.
// Not here:   sockets, and how many bytes are taken (redis_connection.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvilt/result.h"

struct redisReader;

namespace kvilt {

struct RedisReply {
  enum class Kind : uint8_t { kNil, kText, kNumber, kArray, kError };
  Kind kind = Kind::kNil;
  std::string text;  // kText, kError
  int64_t number = 0;
  std::vector<RedisReply> array;
  bool failed() const { return kind == Kind::kError; }
};

class RedisParser {
 public:
  static constexpr size_t kMostElements = size_t{1} << 16;  // of the arrays of one reply, nested ones included

  RedisParser();
  ~RedisParser();
  RedisParser(const RedisParser&) = delete;
  RedisParser& operator=(const RedisParser&) = delete;

  Status feed(std::string_view bytes);
  // Nothing: the next one is not whole yet.
  Result<std::optional<RedisReply>> next();

 private:
  Error failure() const;
  struct Free {
    void operator()(redisReader* reader) const;
  };
  size_t left_ = kMostElements;                      // that the reply that is being read may still have
  const std::unique_ptr<redisReader, Free> reader_;  // null: there was no memory
};

}  // namespace kvilt
