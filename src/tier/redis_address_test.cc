#include "tier/redis_address.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

RedisAddress good(const std::string& text) {
  const auto out = parse_redis_address(text);
  EXPECT_TRUE(out.ok()) << text << ": " << (out.ok() ? "" : out.error().message);
  return out.ok() ? *out : RedisAddress();
}

TEST(RedisAddress, HostsAndPorts) {
  EXPECT_EQ(good("cache:7000").host, "cache");
  EXPECT_EQ(good("cache:7000").port, 7000);
  EXPECT_EQ(good("10.0.0.7").port, 6379);
  EXPECT_EQ(good("[::1]:7").host, "::1");
  EXPECT_EQ(good("[::1]:7").port, 7);
  EXPECT_EQ(good("[::1]").port, 6379);
  EXPECT_EQ(good("redis://cache").host, "cache");
  EXPECT_EQ(good("redis://cache/").db, 0);
  EXPECT_EQ(good("redis://cache:1/12").db, 12);
}

TEST(RedisAddress, Logins) {
  const RedisAddress one = good("redis://:se%40c%3aret@cache:1/2");
  EXPECT_EQ(one.user, "");
  EXPECT_EQ(one.password, "se@c:ret");
  const RedisAddress two = good("redis://me:a@b@cache");
  EXPECT_EQ(two.user, "me");
  EXPECT_EQ(two.password, "a@b");
  EXPECT_EQ(two.host, "cache");
  EXPECT_EQ(two.shown(), "cache:6379") << "no secret in messages";
}

TEST(RedisAddress, Sockets) {
  EXPECT_EQ(good("unix:/run/redis.sock").socket, "/run/redis.sock");
  EXPECT_EQ(good("unix:///run/redis.sock").socket, "/run/redis.sock");
  EXPECT_EQ(good("unix:/a").shown(), "unix:/a");
}

TEST(RedisAddress, WhatIsNoneIsAnError) {
  for (const char* text : {"",
                           ":",
                           ":6379",
                           "cache:",
                           "cache:0",
                           "cache:65536",
                           "cache:6379x",
                           "cache:-1",
                           "a b:1",
                           "::1",
                           "[::1",
                           "[]:1",
                           "http://cache",
                           "rediss://cache",
                           "redis://",
                           "redis://cache/x",
                           "redis://cache/-1",
                           "redis://cache/99999999999",
                           "redis://me@cache",
                           "redis://me:@cache",
                           "redis://:%4@cache",
                           "redis://:%zz@cache",
                           "unix:",
                           "unix:relative",
                           "redis://a/b/c"}) {
    const auto out = parse_redis_address(text);
    ASSERT_FALSE(out.ok()) << text;
    EXPECT_EQ(out.error().code, Code::kInvalidArgument) << text;
  }
  EXPECT_EQ(parse_redis_address("redis://me:hidden@:1").error().message.find("hidden"), std::string::npos);
}

TEST(RedisAddress, Several) {
  const auto out = parse_redis_addresses("redis://me:a%2Cb@one/2,two:7000,unix:/run/three");
  ASSERT_TRUE(out.ok()) << out.error().message;
  ASSERT_EQ(out->size(), 3u);
  EXPECT_EQ((*out)[0].password, "a,b");
  EXPECT_EQ((*out)[1].port, 7000);
  EXPECT_EQ((*out)[2].socket, "/run/three");
  EXPECT_EQ(parse_redis_addresses("one")->size(), 1u);
  for (const char* text : {"", "one,", ",one", "one,,two", "one,one:6379", "one/1,one/2", "unix:/a,unix:/a"})
    EXPECT_FALSE(parse_redis_addresses(text).ok()) << text;
}

}  // namespace
}  // namespace kvilt
