// A connection's own limits: empty lines before a request, and clients that take what is written byte by byte.
#include "server/connection.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

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

TEST(Connection, ARequestForWhichThereIsNoMemoryIsA503) {
  LiveServer running;
  const auto reply = running.post("/v1/completions", R"({"prompt": "FAKE_NO_MEMORY"})");
  EXPECT_EQ(reply->status, 503);
  EXPECT_EQ(error_of(reply)["code"], "overloaded");
  EXPECT_EQ(running.post("/v1/completions", R"({"prompt": "x"})")->status, 200) << "and the server goes on";
}

// A socket whose other side takes 256 bytes a millisecond.
class SlowReader : public testing::Test {
 protected:
  SlowReader() {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets_), 0);
    buffer(4096);
    thread_ = std::thread([this] { read(); });
  }
  ~SlowReader() override {
    ended_ = true;
    thread_.join();
    for (const int socket : sockets_) ::close(socket);
  }

  void buffer(int bytes) { ::setsockopt(sockets_[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes); }
  // How many writes of 1 KiB it takes, of these.
  int taken(int writes, size_t floor, double seconds = 1) {
    ConnectionLimits limits;
    limits.write_s = seconds;
    limits.write_floor_bytes = floor;
    Connection connection(sockets_[0], limits, stop_, stop_);
    const std::string block(1024, 'x');
    for (int i = 0; i < writes; ++i) {
      if (connection.write(block.data(), block.size()) < 0) return i;
    }
    EXPECT_FALSE(connection.must_close());
    return writes;
  }

 private:
  void read() {
    char block[256];
    while (!ended_) {
      pollfd poller{sockets_[1], POLLIN, 0};
      if (::poll(&poller, 1, 10) > 0) ::recv(sockets_[1], block, sizeof block, MSG_DONTWAIT);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  int sockets_[2] = {-1, -1};
  const std::atomic<bool> stop_{false};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

TEST_F(SlowReader, IsClosedBelowTheFloor) { EXPECT_LT(taken(3000, 1 << 20), 3000); }

TEST_F(SlowReader, GoesOnAboveIt) { EXPECT_EQ(taken(600, 1), 600) << "for some seconds"; }

// The system calls a socket writable again when most of its buffer is free. A large one takes longer to get there.
TEST_F(SlowReader, GoesOnWhereTheBufferIsLarge) {
  buffer(1 << 20);
  EXPECT_EQ(taken(600, 1, 0.25), 600);
}

}  // namespace
}  // namespace kvilt::server
