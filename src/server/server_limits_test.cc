// Clients that vanish, stall, crowd or lie, and how the server ends.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <limits>
#include <random>

#include "server/http_server.h"
#include "server/live_server_for_test.h"

namespace kvilt::server {
namespace {

TEST(ServerLimits, OptionsOutOfRangeAreRefused) {
  const auto why = [](auto change) {
    ServerOptions options{.port = 0};
    change(options);
    const auto server = kvilt::Server::listen(options);
    if (server.ok()) return std::string();
    EXPECT_EQ(server.error().code, Code::kInvalidArgument);
    return server.error().message;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinite = std::numeric_limits<double>::infinity();
  for (const double wrong : {-1.0, 86401.0, nan, infinite}) {
    EXPECT_NE(why([&](ServerOptions& o) { o.shutdown_s = wrong; }).find("--shutdown-seconds"), std::string::npos)
        << wrong;
  }
  for (const double wrong : {-1.0, 0.0, 86401.0, nan, infinite})
    EXPECT_NE(why([&](ServerOptions& o) { o.ping_s = wrong; }).find("ping_s"), std::string::npos) << wrong;
  EXPECT_EQ(why([](ServerOptions& o) { o.ping_s = 0.001; }), "");
  EXPECT_EQ(why([](ServerOptions& o) { o.shutdown_s = -1; }),
            "shutdown_s (--shutdown-seconds) is -1, not from 0 to 86400");
  EXPECT_EQ(why([](ServerOptions& o) { o.max_body_bytes = 0; }),
            "max_body_bytes (--max-body) is 0, not from 1 to 2147483647");
  EXPECT_NE(why([](ServerOptions& o) { o.max_body_bytes = static_cast<size_t>(-1); }).find("--max-body"),
            std::string::npos);
  EXPECT_NE(why([](ServerOptions& o) { o.host = ""; }).find("--host"), std::string::npos);
  EXPECT_NE(why([](ServerOptions& o) { o.port = 65536; }).find("--port"), std::string::npos);
  EXPECT_NE(why([](ServerOptions& o) { o.max_connections = 0; }).find("--max-connections"), std::string::npos);
  EXPECT_EQ(why([](ServerOptions& o) { o.shutdown_s = 0, o.max_body_bytes = 1, o.max_connections = 1; }), "");
}

TEST(ServerLimits, VanishedClientsAreCancelled) {
  FakeOptions fake;
  fake.seconds_per_token = 0.005;  // 4,000 tokens would take 20 s
  LiveServer running(fake);
  RawClient streaming(running.server->port()), whole(running.server->port());
  streaming.send(request("/v1/chat/completions", kLongStream));
  whole.send(request("/v1/chat/completions", kLong));
  EXPECT_NE(streaming.receive("content\":\"").find("200 OK"), std::string::npos);
  ASSERT_TRUE(eventually([&] { return running.engine->stats().running == 2; }));
  streaming.close();
  EXPECT_TRUE(eventually([&] { return running.engine->cancelled() == 1; }));
  whole.close();
  EXPECT_TRUE(eventually([&] { return running.engine->cancelled() == 2; }));
  EXPECT_TRUE(eventually([&] { return running.engine->stats().running == 0; }));  // counted after the cancellation
  EXPECT_EQ(running.engine->stats().requests_ok, 0u);
}

TEST(ServerLimits, WarmingIsCancelledToo) {
  FakeOptions fake;
  fake.seconds_per_token = 0.05;
  fake.max_running = 1;
  LiveServer running(fake);
  Json body = {{"documents", Json::array()}};
  for (int i = 0; i < 200; ++i) body["documents"].push_back({{"text", "document " + std::to_string(i)}});
  RawClient client(running.server->port());
  client.send(request("/v1/documents", body.dump()));
  ASSERT_TRUE(eventually([&] { return running.engine->stats().waiting > 0; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return running.engine->cancelled() > 0; }));
  EXPECT_TRUE(eventually([&] { return running.engine->stats().running + running.engine->stats().waiting == 0; }));
}

TEST(ServerLimits, ClientThatNeverReads) {
  FakeOptions fake;
  fake.context = 1 << 20;
  LiveServer running(fake);  // as fast as it can
  RawClient client(running.server->port());
  client.send(request("/v1/chat/completions",
                      R"({"messages": [{"role": "user", "content": "hi"}], "ignore_eos": true, "stream": true})"));
  EXPECT_TRUE(eventually([&] { return running.engine->cancelled() == 1; }));
  EXPECT_EQ(running.post("/v1/chat/completions", kChat)->status, 200);
}

TEST(ServerLimits, SlowHeadsAndBodies) {
  ServerOptions options;
  options.request_timeout_s = 0.3;
  options.idle_timeout_s = 0.3;
  LiveServer running({}, options);
  RawClient idle(running.server->port()), head(running.server->port()), body(running.server->port());
  head.send("POST /v1/chat");
  body.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"mess");
  EXPECT_EQ(idle.receive(), "");
  EXPECT_TRUE(idle.ended());
  EXPECT_NE(head.receive().find("408"), std::string::npos);
  EXPECT_NE(body.receive().find("400"), std::string::npos);
  EXPECT_TRUE(body.ended());
}

TEST(ServerLimits, OversizedBodies) {
  ServerOptions options;
  options.max_body_bytes = 10000;
  LiveServer running({}, options);
  auto declared = running.post("/v1/chat/completions", std::string(20000, ' ') + kChat);
  EXPECT_EQ(declared->status, 413);
  EXPECT_EQ(error_of(declared)["type"], "invalid_request_error");
  EXPECT_EQ(running.post("/v1/chat/completions", std::string(5000, ' ') + kChat)->status, 200);

  const std::string head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string block = "400\r\n" + std::string(1024, ' ') + "\r\n";
  RawClient chunked(running.server->port());
  chunked.send(head);
  for (int i = 0; i < 100; ++i) chunked.send(block);
  EXPECT_NE(chunked.receive().find("413"), std::string::npos);
  RawClient tiny(running.server->port());  // one byte a chunk
  tiny.send(head);
  for (int i = 0; i < 20000; ++i) tiny.send("1\r\n \r\n");
  EXPECT_NE(tiny.receive().find("413"), std::string::npos);
  RawClient fits(running.server->port());
  fits.send(head + block + "0\r\n\r\n");
  EXPECT_NE(fits.receive("}}", 2000).find("not valid JSON"), std::string::npos);
  RawClient trailers(running.server->port());
  trailers.send(head + block + "0\r\nX-Checksum: 1\r\n\r\n");
  EXPECT_NE(trailers.receive().find("its chunks have trailers"), std::string::npos);
  RawClient huge(running.server->port());
  huge.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n");
  EXPECT_NE(huge.receive().find("413"), std::string::npos);
}

// A body that the library would not read must not be taken for the next request: behind a proxy that shares connections
// it could begin a request into which another client's would run.
TEST(ServerLimits, ABodyOfAGetIsNotTheNextRequest) {
  LiveServer running;
  const std::string hidden = "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n";
  RawClient client(running.server->port());
  client.send("GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(hidden.size()) + "\r\n\r\n" +
              hidden);
  const std::string all = client.receive("no such text");  // until the end of the connection
  EXPECT_EQ(all.rfind("HTTP/1.1 400", 0), 0u) << all;
  EXPECT_EQ(all.find("HTTP/1.1 ", 1), std::string::npos) << "one answer: " << all;
  RawClient plain(running.server->port());  // power check: the same without a length is two requests
  plain.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n" + hidden);
  EXPECT_NE(plain.receive("\"list\"").find("HTTP/1.1 ", 1), std::string::npos);
}

TEST(ServerLimits, BadHeads) {
  LiveServer running;
  const std::pair<std::string, const char*> cases[] = {
      {"\x16\x03\x01garbage\r\n\r\n", "400"},
      {"GET / HTTP/9.9\r\n\r\n", "400"},
      {"GET /\r\n\r\n", "400"},
      {"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "400"},
      {"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", "400"},
      {"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n", "400"},
      {"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", "400"},
      {"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", "400"},
      {"POST /v1/chat/completions HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde", "415"},
      {"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n", "411"},
      {"GET /health HTTP/1.1\r\nbad line\r\n\r\n", "400"},
      {"GET /health HTTP/1.1\r\nContent-Length : 5\r\n\r\n", "400"},
      {"GET /" + std::string(9000, 'a') + " HTTP/1.1\r\n\r\n", "414"},
      {"GET /" + std::string(3000, 'a') + " HTTP/1.1\r\n\r\n", "414"},
      {"GET / HTTP/1.1\r\nX: " + std::string(40000, 'a') + "\r\n\r\n", "431"},
      {"GET / HTTP/1.1\r\n" + std::string(100000, 'a'), "431"},
      {"GET /health HTTP/1.1\r\nCookie: " + std::string(9000, 'a') + "\r\n\r\n", "431"},
      {"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\nCookie: " + std::string(8190, 'a') + "\r\n\r\n{}",
       "431"},
      {"GET /health HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde", "400"},
      {"GET /health HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
      {"OPTIONS /health HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde", "400"},
      {"GET /health HTTP/1.1\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", "400"},
      {"BREW /coffee HTTP/1.1\r\n\r\n", "400"},
      {"TRACE / HTTP/1.1\r\n\r\n", "405"},
  };
  for (const auto& [bytes, status] : cases) {
    RawClient client(running.server->port());
    client.send(bytes);
    const std::string reply = client.receive("}}");
    EXPECT_EQ(reply.rfind(std::string("HTTP/1.1 ") + status, 0), 0u)
        << bytes.substr(0, 80) << "\n-> " << reply.substr(0, 300);
    EXPECT_NE(reply.find("\"error\""), std::string::npos) << reply.substr(0, 300);
  }
  RawClient longest(running.server->port());  // of one field that the library still reads
  longest.send("GET /health HTTP/1.1\r\nCookie: " + std::string(8182, 'a') + "\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(longest.receive().rfind("HTTP/1.1 200", 0), 0u);
  // A Range that httplib's regex would recurse over, and one that would multiply the answer.
  for (const std::string& range : {std::string(8000, '1'), [] {
                                     std::string many = "0-";
                                     for (int i = 0; i < 2000; ++i) many += ",0-";
                                     return many;
                                   }()}) {
    RawClient client(running.server->port());
    client.send("GET / HTTP/1.1\r\nHost: x\r\nRange: bytes=" + range + "\r\nConnection: close\r\n\r\n");
    const std::string reply = client.receive();
    EXPECT_EQ(reply.rfind("HTTP/1.1 200", 0), 0u);
    EXPECT_LT(reply.size(), 20000u);
  }
}

TEST(ServerLimits, OneConnectionManyRequests) {
  LiveServer running;
  RawClient client(running.server->port());
  client.send(request("/v1/completions", R"({"prompt": "a", "max_tokens": 3})") +
              request("/v1/completions", R"({"prompt": "b", "max_tokens": 3})") +
              "GET /health HTTP/1.1\r\nConnection: close\r\n\r\n");
  const std::string replies = client.receive();
  size_t answers = 0, at = 0;
  while ((at = replies.find("HTTP/1.1 200 OK", at)) != std::string::npos) ++answers, ++at;
  EXPECT_EQ(answers, 3u) << replies;
  EXPECT_TRUE(client.ended());
}

TEST(ServerLimits, MoreConnectionsThanThreads) {
  FakeOptions fake;
  fake.seconds_per_token = 0.005;
  ServerOptions options;
  options.max_connections = 4;
  LiveServer running(fake, options);
  std::vector<std::unique_ptr<RawClient>> streams;
  for (int i = 0; i < 4; ++i) {
    streams.push_back(std::make_unique<RawClient>(running.server->port()));
    streams.back()->send(request("/v1/chat/completions", kLongStream));
    EXPECT_NE(streams.back()->receive("content\":\"").find("200 OK"), std::string::npos);
  }
  auto refused = running.client().Get("/v1/models");
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->get_header_value("Retry-After"), "1");
  EXPECT_EQ(error_of(refused)["type"], "server_error");
  streams.pop_back();
  EXPECT_TRUE(eventually([&] {
    auto reply = running.client().Get("/v1/models");
    return reply && reply->status == 200;
  }));
}

// A server whose two threads are taken by streams that wait for a token.
class FullServer : public testing::Test {
 protected:
  FullServer() {
    running.engine->hold(true);
    for (auto& stream : streams) stream.send(request("/v1/chat/completions", kLongStream));
    EXPECT_TRUE(eventually([&] { return running.engine->stats().waiting == 2; }));
  }
  ~FullServer() override { running.engine->hold(false); }

  static ServerOptions two() {
    ServerOptions options;
    options.max_connections = 2;
    return options;
  }

  LiveServer running{{}, two()};
  RawClient streams[2] = {RawClient(running.server->port()), RawClient(running.server->port())};
};

TEST_F(FullServer, AnswersHealthAndMetrics) {
  for (int i = 0; i < 3; ++i) {
    for (const char* path : {"/health", "/metrics"}) {
      auto reply = running.client().Get(path);
      ASSERT_TRUE(reply) << path;
      EXPECT_EQ(reply->status, 200) << path;
    }
  }
  EXPECT_NE(running.client().Get("/metrics")->body.find("http_connections_refused_total"), std::string::npos);
  EXPECT_EQ(running.client().Get("/v1/models")->status, 503) << "power check: it is full";
  EXPECT_EQ(running.client().Get("/healthy")->status, 503);
}

TEST_F(FullServer, RefusesEveryPoliteClientBesideSilentOnes) {
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 70; ++i) silent.push_back(std::make_unique<RawClient>(running.server->port()));
  std::vector<std::unique_ptr<RawClient>> polite;
  for (int i = 0; i < 100; ++i) {
    polite.push_back(std::make_unique<RawClient>(running.server->port()));
    EXPECT_TRUE(polite.back()->send(request("/v1/chat/completions", kChat)));
  }
  for (auto& client : polite) {
    EXPECT_EQ(client->receive().rfind("HTTP/1.1 503", 0), 0u);
    EXPECT_TRUE(client->ended());
  }
  EXPECT_EQ(silent[0]->receive("", 50), "");
  EXPECT_FALSE(silent[0]->ended()) << "power check: the silent ones are still there";
}

TEST_F(FullServer, SaysNothingToTheSilentUntilTheySpeak) {
  RawClient late(running.server->port());
  EXPECT_EQ(late.receive("", 50), "");
  EXPECT_FALSE(late.ended());
  late.send("GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(late.receive().rfind("HTTP/1.1 503", 0), 0u);
}

// Where a process may open few files the room has few places. The first ones leave with an answer.
TEST(ServerLimits, TheLongestSilentLeaveFirst) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit few{120, files.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  ServerOptions options;
  options.max_connections = 60;  // leaves 30 places
  LiveServer running({}, options);
  EXPECT_EQ(running.client().Get("/health")->status, 200);  // from here on the number of places is fixed
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(std::make_unique<RawClient>(running.server->port()));
  for (int i : {0, 9}) {
    EXPECT_EQ(silent[i]->receive().rfind("HTTP/1.1 503", 0), 0u);
    EXPECT_TRUE(silent[i]->ended());
  }
  for (int i : {10, 39}) {
    EXPECT_EQ(silent[i]->receive("", 50), "");
    EXPECT_FALSE(silent[i]->ended()) << i;
  }
}

TEST(ServerLimits, SilentConnectionsTakeNoThread) {
  ServerOptions options;
  options.max_connections = 2;
  LiveServer running({}, options);
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(std::make_unique<RawClient>(running.server->port()));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(running.post("/v1/chat/completions", kChat)->status, 200);
  silent[7]->send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(silent[7]->receive("ok").find("200 OK"), std::string::npos);
  EXPECT_EQ(silent[8]->receive("", 50), "");
  EXPECT_FALSE(silent[8]->ended()) << "power check: they are still there";
}

TEST(ServerLimits, IdleConnectionsGiveWay) {
  ServerOptions options;
  options.max_connections = 2;
  LiveServer running({}, options);
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 2; ++i) {
    idle.push_back(std::make_unique<RawClient>(running.server->port()));
    idle.back()->send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_NE(idle.back()->receive("ok").find("200"), std::string::npos);
  }
  EXPECT_TRUE(eventually([&] {
    auto reply = running.client().Get("/v1/models");  // the waiting room would answer /health itself
    return reply && reply->status == 200;
  }));
}

TEST(ServerLimits, ManyClientsAtOnce) {
  LiveServer running;
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < 5; ++j) {
        Json body = Json::parse(kChat);
        body["messages"][0]["content"] = "client " + std::to_string(i);
        body["stream"] = j % 2 == 0;
        auto reply = running.post("/v1/chat/completions", body.dump());
        good += reply && reply->status == 200;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 80);
}

TEST(ServerLimits, ShutdownLetsRequestsFinish) {
  FakeOptions fake;
  fake.seconds_per_token = 0.005;
  LiveServer running(fake);
  RawClient client(running.server->port()), idle(running.server->port());
  client.send(request(
      "/v1/chat/completions",
      R"({"messages": [{"role": "user", "content": "hi"}], "ignore_eos": true, "max_tokens": 60, "stream": true})"));
  ASSERT_TRUE(eventually([&] { return running.engine->stats().running == 1; }));
  std::thread stopper([&] { running.server->shutdown(); });
  const std::string reply = client.receive();
  stopper.join();
  EXPECT_NE(reply.find("\"finish_reason\":\"length\""), std::string::npos);
  EXPECT_NE(reply.find("[DONE]"), std::string::npos);
  EXPECT_EQ(idle.receive(), "");
  EXPECT_TRUE(idle.ended());
  RawClient late(running.server->port());
  EXPECT_FALSE(late.connected());
}

// One stream in the middle, streams that wait for their first token, one that began long ago with HTTP/1.0, and a whole
// answer: all that run when the stop comes end as if it had not come.
TEST(ServerLimits, ShutdownLetsStreamsWithoutATokenFinish) {
  FakeOptions fake;
  fake.max_running = 2;
  fake.seconds_per_token = 0.001;
  ServerOptions options;
  options.shutdown_s = 60;
  LiveServer running(fake, options);
  const auto ask = [](bool stream, int tokens) {
    return R"({"messages": [{"role": "user", "content": "hi"}], "ignore_eos": true, "max_tokens": )" +
           std::to_string(tokens) + R"(, "stream": )" + (stream ? "true}" : "false}");
  };
  RawClient middle(running.server->port());
  middle.send(request("/v1/chat/completions", ask(true, 500)));
  const std::string begun = middle.receive("content\":\"");
  EXPECT_NE(begun.find("200 OK"), std::string::npos);
  running.engine->hold(true);
  std::vector<std::unique_ptr<RawClient>> streams;
  for (int i = 0; i < 4; ++i) {
    streams.push_back(std::make_unique<RawClient>(running.server->port()));
    streams.back()->send(request("/v1/chat/completions", ask(true, 20)));
  }
  RawClient old(running.server->port()), whole(running.server->port());
  std::string old_request = request("/v1/chat/completions", ask(true, 20));
  old_request.replace(old_request.find("HTTP/1.1"), 8, "HTTP/1.0");
  old.send(old_request);
  whole.send(request("/v1/chat/completions", ask(false, 20)));
  ASSERT_TRUE(eventually([&] { return running.engine->stats().waiting == 6; }));
  ASSERT_EQ(running.engine->stats().running, 1) << "power check: the first stream must still be in the middle";

  std::thread stopper([&] { running.server->shutdown(); });
  EXPECT_TRUE(eventually([&] { return !RawClient(running.server->port()).connected(); }));
  EXPECT_EQ(running.engine->stats().waiting, 6) << "power check: none had a token before the stop";
  running.engine->hold(false);
  const std::string rest = middle.receive();
  EXPECT_NE(rest.find("data: [DONE]\n\n\r\n0\r\n\r\n"), std::string::npos) << rest.substr(0, 300);
  for (auto& client : streams) {
    const std::string reply = client->receive();
    EXPECT_NE(reply.find("\"finish_reason\":\"length\""), std::string::npos) << reply.substr(0, 300);
    EXPECT_NE(reply.find("data: [DONE]\n\n\r\n0\r\n\r\n"), std::string::npos);
  }
  const std::string unframed = old.receive();
  EXPECT_NE(unframed.find("data: [DONE]\n\n"), std::string::npos) << unframed.substr(0, 300);
  EXPECT_NE(whole.receive().find("\"finish_reason\":\"length\""), std::string::npos);
  stopper.join();
  EXPECT_EQ(running.engine->stats().requests_ok, 7u);
}

// The same, when the stop finds streams that wait and their time is too short: each says why it ended.
TEST(ServerLimits, ShutdownEndsStreamsWithoutAToken) {
  ServerOptions options;
  options.shutdown_s = 0.2;
  LiveServer running({}, options);
  running.engine->hold(true);
  RawClient stream(running.server->port());
  stream.send(request("/v1/chat/completions", kLongStream));
  ASSERT_TRUE(eventually([&] { return running.engine->stats().waiting == 1; }));
  running.server->shutdown();
  EXPECT_NE(stream.receive().find("\"code\":\"cancelled\""), std::string::npos);
}

// Every number of a socket that the server and the library opened is closed once.
TEST(ServerLimits, ServersLeaveNoFilesOpen) {
  const auto open_files = [] {
    int files = 0;
    for (int i = 0; i < 1024; ++i) files += ::fcntl(i, F_GETFD) != -1;
    return files;
  };
  LiveServer().post("/v1/chat/completions", kChat);  // what libraries open once
  const int before = open_files();
  {
    LiveServer running;
    EXPECT_EQ(running.post("/v1/chat/completions", kChat)->status, 200);
    EXPECT_GT(open_files(), before) << "power check";
  }
  {
    ServerOptions options;
    options.port = 0;
    auto never_ran = kvilt::Server::listen(options);
    ASSERT_TRUE(never_ran.ok());
  }
  EXPECT_EQ(open_files(), before);
}

TEST(ServerLimits, ShutdownEndsWhatTakesTooLong) {
  FakeOptions fake;
  fake.seconds_per_token = 0.01;
  ServerOptions options;
  options.shutdown_s = 0.2;
  LiveServer running(fake, options);
  RawClient streaming(running.server->port()), whole(running.server->port());
  streaming.send(request("/v1/chat/completions", kLongStream));
  whole.send(request("/v1/chat/completions", kLong));
  ASSERT_TRUE(eventually([&] { return running.engine->stats().running == 2; }));
  running.server->shutdown();
  EXPECT_NE(streaming.receive().find("\"code\":\"cancelled\""), std::string::npos);
  EXPECT_NE(whole.receive().find("HTTP/1.1 503"), std::string::npos);
}

TEST(ServerLimits, EndsBeforeItRan) {
  ServerOptions options;
  options.port = 0;
  auto server = kvilt::Server::listen(options);
  ASSERT_TRUE(server.ok());
  server.value()->shutdown();
  EXPECT_TRUE(server.value()->run().ok());  // returns at once
}

// The first calls of accept() fail, as where the system's table of files is full, a firewall refuses or a client left.
class Refused : public HttpServer {
 public:
  Refused() : HttpServer({}, 4, false) {}
  std::atomic<size_t> failed{0};

 private:
  int accept_connection() override {
    constexpr int kErrors[] = {ENFILE, ENOMEM, ENOBUFS, EPERM, ECONNABORTED, EMFILE};
    if (failed == std::size(kErrors)) return HttpServer::accept_connection();
    errno = kErrors[failed++];
    return -1;
  }
};

TEST(ServerLimits, AnErrorOfAcceptPasses) {
  Refused http;
  http.Get("/x", [](const httplib::Request&, httplib::Response& out) { out.set_content("here", "text/plain"); });
  const int port = http.bind("127.0.0.1", 0);
  ASSERT_GT(port, 0);
  Status ended;
  std::thread web([&] { ended = http.run(); });
  httplib::Client client("127.0.0.1", port);
  client.set_read_timeout(kPatience);
  const auto answer = client.Get("/x");
  http.stop_accepting();
  web.join();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->body, "here");
  EXPECT_EQ(http.failed, 6u);
  EXPECT_TRUE(ended.ok()) << ended.error().message;
}

// The number of the process's socket that listens on a port of loopback.
int listening_on(int port) {
  for (int fd = 3; fd < 4096; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    sockaddr_in bound{};
    size = sizeof bound;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) == 0 && ntohs(bound.sin_port) == port) return fd;
  }
  return -1;
}

TEST(ServerLimits, SaysThatItsSocketIsLost) {
  LiveServer running;
  EXPECT_EQ(running.post("/v1/chat/completions", kChat)->status, 200);
  const int socket = listening_on(running.server->port());
  ASSERT_GE(socket, 0);
  ::shutdown(socket, SHUT_RDWR);
  running.wait();
  ASSERT_FALSE(running.ended.ok());
  EXPECT_EQ(running.ended.error().code, Code::kIo);
  EXPECT_NE(running.ended.error().message.find("no connection can be accepted"), std::string::npos);
}

// Random bytes and broken requests: each ends, and the server still answers.
TEST(ServerLimits, Fuzz) {
  ServerOptions options;
  options.request_timeout_s = 0.05;
  LiveServer running({}, options);
  std::mt19937 random(11);
  const std::string whole = request("/v1/chat/completions", kChat);
  for (int round = 0; round < 100; ++round) {
    std::string bytes = whole;
    const int edits = static_cast<int>(random() % 6);
    for (int i = 0; i < edits; ++i) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, random() % 20);
          break;
        case 2:
          bytes.insert(at, std::string(random() % 50, static_cast<char>(random())));
          break;
        case 3:
          bytes.resize(at + 1);
          break;
      }
      if (bytes.empty()) bytes = "x";
    }
    RawClient client(running.server->port());
    client.send(bytes);
    if (round % 3) client.receive("}", 250);
  }
  EXPECT_TRUE(eventually([&] {  // on a busy machine a good request may be too slow for these deadlines as well
    auto after = running.post("/v1/chat/completions", kChat);
    return after && after->status == 200;
  }));
}

}  // namespace
}  // namespace kvilt::server
