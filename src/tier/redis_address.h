// tier/redis_address.h: where a Redis is: "HOST:PORT", "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]", "unix:PATH"; or
// several of these with commas between them.
// Errors:  kInvalidArgument, with what is wrong. No message has the password.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvilt/result.h"

namespace kvilt {

struct RedisAddress {
  std::string host;  // empty: `socket`
  int port = 6379;
  std::string socket;          // path of a unix socket
  std::string user, password;  // empty: none is asked for
  int db = 0;
  std::string shown() const;  // for messages: without user and password
};

Result<RedisAddress> parse_redis_address(std::string_view text);
// At least one, and none twice.
Result<std::vector<RedisAddress>> parse_redis_addresses(std::string_view text);

}  // namespace kvilt
