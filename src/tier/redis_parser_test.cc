// Replies are read the same however their bytes come; what is no reply, or claims too much, is an error.
#include "tier/redis_parser.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace kvilt {
namespace {

// As text: kinds, numbers, words.
std::string shown(const RedisReply& reply) {
  switch (reply.kind) {
    case RedisReply::Kind::kNil:
      return "nil";
    case RedisReply::Kind::kText:
      return "'" + reply.text + "'";
    case RedisReply::Kind::kNumber:
      return std::to_string(reply.number);
    case RedisReply::Kind::kError:
      return "!" + reply.text;
    case RedisReply::Kind::kArray:
      break;
  }
  std::string out = "[";
  for (const RedisReply& item : reply.array) out += shown(item) + " ";
  return out + "]";
}

// All replies of the bytes, fed `at_once` at a time; then the error, if one ended them.
std::string read(std::string_view bytes, size_t at_once) {
  RedisParser parser;
  std::string out;
  while (!bytes.empty()) {
    const std::string_view some = bytes.substr(0, at_once);
    bytes.remove_prefix(some.size());
    if (const Status fed = parser.feed(some); !fed.ok()) return out + "?";
    for (;;) {
      const auto reply = parser.next();
      if (!reply.ok()) {
        EXPECT_EQ(reply.error().code, Code::kCorrupt);
        return out + "?";
      }
      if (!*reply) break;
      out += shown(**reply) + ";";
    }
  }
  return out;
}

TEST(RedisParser, RepliesAreTheSameHoweverTheyCome) {
  const std::string bytes =
      "+PONG\r\n:-12\r\n$3\r\na\r\n\r\n$-1\r\n*3\r\n$1\r\n0\r\n*2\r\n:1\r\n*0\r\n-ERR no\r\n-WRONGTYPE x\r\n+end\r\n";
  for (size_t at_once = 1; at_once <= bytes.size(); ++at_once)
    EXPECT_EQ(read(bytes, at_once), "'PONG';-12;'a\r\n';nil;['0' [1 [] ] !ERR no ];!WRONGTYPE x;'end';") << at_once;
}

TEST(RedisParser, WhatIsNotWholeIsNoReplyYet) {
  for (const char* bytes : {"$5\r\nabc", "*2\r\n:1\r\n", ":12", "*3\r\n"}) EXPECT_EQ(read(bytes, 100), "") << bytes;
}

// Of RESP3 nobody asked for anything: what it has beyond RESP2 is refused, or nil, with any hiredis.
TEST(RedisParser, OtherBytesAreNoReplies) {
  for (const char* bytes : {"HTTP/1.1 400\r\n", ",1.5\r\n", "#t\r\n", ":1x\r\n", "$-2\r\n", "*1\r\n?\r\n"})
    EXPECT_EQ(read(bytes, 100), "?") << bytes;
  const std::string nil = read("_\r\n", 100);
  EXPECT_TRUE(nil == "?" || nil == "nil;") << nil;
}

// The bound is of one reply with all that is nested in it, and each reply has its own.
TEST(RedisParser, AReplyHasNoMorePartsThanItsBound) {
  const size_t most = RedisParser::kMostElements;
  const auto of = [](size_t outer, size_t inner) {
    std::string out = fmt::format("*{}\r\n*{}\r\n", outer, inner);
    for (size_t i = 0; i < inner + outer - 1; ++i) out += ":1\r\n";
    return out;
  };
  EXPECT_EQ(read("*2147483646\r\n", 100), "?");
  EXPECT_EQ(read(of(2, most - 1), 1 << 20), "?");
  const std::string whole = of(2, most - 2);
  const std::string twice = read(whole + whole, 1 << 20);
  EXPECT_EQ(std::ranges::count(twice, ';'), 2);
  EXPECT_FALSE(twice.ends_with("?"));
}

}  // namespace
}  // namespace kvilt
