// A connection's own limits: empty lines before a request.
#include "server/connection.h"

#include <gtest/gtest.h>

#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

TEST(Connection, EmptyLinesEndIt) {
  LiveServer running;
  const std::string health = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
  RawClient some(running.server->port()), many(running.server->port()), slow(running.server->port());
  some.send("\r\n\r\n" + health + "\r\n" + health + "\r\n\r\n\r\n");
  const std::string two = some.receive("ok\"}HTTP/1.1 200 OK", 1000);
  EXPECT_NE(two.find("HTTP/1.1 200", 1), std::string::npos) << "a few are tolerated: " << two;
  std::string lines;
  for (int i = 0; i < 9; ++i) lines += "\r\n";
  many.send(lines);
  EXPECT_NE(many.receive().find("400 Bad Request"), std::string::npos);
  EXPECT_TRUE(many.ended());
  bool sent = true;  // one by one: each comes long before any deadline
  std::string reply;
  for (int i = 0; i < 100 && sent && reply.empty(); ++i) {
    sent = slow.send("\r\n");
    reply = slow.receive("HTTP/1.1 400", 20);
  }
  EXPECT_NE(reply.find("empty lines"), std::string::npos) << reply;
}

}  // namespace
}  // namespace kvilt::server
