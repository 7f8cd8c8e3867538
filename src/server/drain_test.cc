// With a time to drain, a server that stops tells those who come; answers that run end as if nothing had happened.
#include <gtest/gtest.h>

#include <cmath>

#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

constexpr const char* kTwenty =
    R"({"messages": [{"role": "user", "content": "hi"}], "ignore_eos": true, "max_tokens": 20, "stream": true})";

ServerOptions with_drain(double seconds) {
  ServerOptions options;
  options.drain_s = seconds;
  options.shutdown_s = 0.2;
  return options;
}

TEST(Drain, NewConnectionsHearThatItStops) {
  LiveServer running({}, with_drain(60));
  running.engine->hold(true);
  RawClient stream(running.server->port()), idle(running.server->port());
  stream.send(request("/v1/chat/completions", kTwenty));
  idle.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(idle.receive("ok").find("200 OK"), std::string::npos);
  ASSERT_TRUE(eventually([&] { return running.engine->stats().waiting == 1; }));
  std::thread stopper([&] { running.server->shutdown(); });
  EXPECT_TRUE(eventually([&] {
    const auto health = running.client().Get("/health");
    return health && health->status == 503;
  }));
  EXPECT_EQ(idle.receive(), "");
  EXPECT_TRUE(idle.ended());
  for (int i = 0; i < 3; ++i) {
    RawClient late(running.server->port());
    ASSERT_TRUE(late.send(request("/v1/chat/completions", kChat)));
    const std::string reply = late.receive();
    EXPECT_EQ(reply.rfind("HTTP/1.1 503", 0), 0u) << reply;
    EXPECT_NE(reply.find("Connection: close"), std::string::npos);
    EXPECT_NE(reply.find("shutting down"), std::string::npos);
    EXPECT_TRUE(late.ended());
  }
  running.engine->hold(false);
  const std::string answer = stream.receive();
  EXPECT_NE(answer.find("\"finish_reason\":\"length\""), std::string::npos) << answer;
  EXPECT_NE(answer.find("[DONE]"), std::string::npos);
  stopper.join();
  EXPECT_FALSE(RawClient(running.server->port()).connected());
}

TEST(Drain, WhatIsNotOverInTimeIsCancelled) {
  LiveServer running({}, with_drain(0.2));
  running.engine->hold(true);
  RawClient stream(running.server->port());
  stream.send(request("/v1/chat/completions", kTwenty));
  ASSERT_TRUE(eventually([&] { return running.engine->stats().waiting == 1; }));
  running.server->shutdown();
  EXPECT_NE(stream.receive().find("\"code\":\"cancelled\""), std::string::npos);
}

TEST(Drain, ATimeOutOfRangeIsRefused) {
  for (const double wrong : {-1.0, 86401.0, std::nan("")}) {
    const auto server = kvilt::Server::listen({.port = 0, .drain_s = wrong});
    ASSERT_FALSE(server.ok());
    EXPECT_NE(server.error().message.find("--drain-seconds"), std::string::npos);
  }
}

}  // namespace
}  // namespace kvilt::server
