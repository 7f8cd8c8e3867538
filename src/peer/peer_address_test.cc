#include "peer/peer_address.h"

#include <gtest/gtest.h>

namespace kvilt {
namespace {

TEST(PeerAddress, IsHostAndPort) {
  const auto plain = parse_peer_address("prefill.example:9123");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->host, "prefill.example");
  EXPECT_EQ(plain->port, 9123);
  const auto v6 = parse_peer_address("[::1]:0");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->port, 0);
  EXPECT_EQ(v6->shown(), "[::1]:0");
  for (const char* wrong : {"", "host", ":1", "host:", "host:70000", "host:-1", "host:1x", "::1:80", "[::1]", "[::1:80",
                            "a b:1", "tcp://a:1"})
    EXPECT_FALSE(parse_peer_address(wrong).ok()) << wrong;
}

TEST(PeerAddress, OnlyAddressesOfThisMachineAreLoopback) {
  for (const char* own : {"127.0.0.1:1", "127.8.0.1:1", "localhost:1", "[::1]:1"})
    EXPECT_TRUE(parse_peer_address(own)->loopback()) << own;
  for (const char* other : {"10.0.0.1:1", "0.0.0.0:1", "[::]:1", "127.evil.example:1", "localhost.example:1"})
    EXPECT_FALSE(parse_peer_address(other)->loopback()) << other;
}

}  // namespace
}  // namespace kvilt
