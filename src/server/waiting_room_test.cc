// The room by itself: which bytes are a probe. How it behaves: server_limits_test.cc.
#include "server/waiting_room.h"

#include <gtest/gtest.h>

namespace kvilt::server {
namespace {

TEST(WaitingRoom, OnlyAWholeHeadOfAnOpenRouteIsAProbe) {
  for (const char* head : {"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", "GET /metrics HTTP/1.0\r\n\r\n",
                           "HEAD /health HTTP/1.1\r\n\r\nmore"}) {
    EXPECT_TRUE(is_probe(head)) << head;
  }
  for (const char* head : {"", "GET ", "GET /health HTTP/1.1\r\nHost: x\r\n", "GET /healthy HTTP/1.1\r\n\r\n",
                           "GET / HTTP/1.1\r\n\r\n", "POST /health HTTP/1.1\r\n\r\n", "get /health HTTP/1.1\r\n\r\n",
                           " GET /health HTTP/1.1\r\n\r\n", "GET /v1/models HTTP/1.1\r\nX: GET /health \r\n\r\n"}) {
    EXPECT_FALSE(is_probe(head)) << head;
  }
}

}  // namespace
}  // namespace kvilt::server
