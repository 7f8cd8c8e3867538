// server/live_server_for_test.h: a server on a free port of loopback that serves the fake engine, and clients for it.
#pragma once

#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/checked_whole.h"
#include "server/fake_engine.h"
#include "server/json_fields.h"
#include "server/raw_client_for_test.h"
#include "server/server.h"

namespace kvilt::server {

// Waits until a condition holds, for a bounded time, so that a failing test ends.
inline bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 1000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// Seconds for an answer: with sanitizers, beside a build, a body of a few MB takes up to 25.
#if defined(KVILT_ASAN) || defined(__SANITIZE_THREAD__)
inline constexpr int kPatience = 60;
#else
inline constexpr int kPatience = 20;
#endif

class LiveServer {
 public:
  explicit LiveServer(FakeOptions fake = {}, ServerOptions options = {}, bool attach = true)
      : engine(std::make_shared<FakeEngine>(fake)) {
    options.port = 0;
    auto listening = kvilt::Server::listen(options);
    EXPECT_TRUE(listening.ok());
    server = std::move(listening.value());
    thread_ = std::thread([this] { ended = server->run(); });
    if (attach) server->attach(engine);
  }
  ~LiveServer() {
    server->shutdown();
    if (thread_.joinable()) thread_.join();
  }

  httplib::Client client() const {
    httplib::Client client("127.0.0.1", server->port());
    client.set_read_timeout(kPatience);
    return client;
  }
  httplib::Result post(const std::string& path, const std::string& body, const httplib::Headers& headers = {}) const {
    return client().Post(path, headers, body, "application/json");
  }

  std::shared_ptr<FakeEngine> engine;
  std::unique_ptr<kvilt::Server> server;
  Status ended;  // what run() returned, after wait()
  void wait() { thread_.join(); }

 private:
  std::thread thread_;
};

inline std::string request(const std::string& path, const std::string& body) {
  return "POST " + path +
         " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

inline constexpr const char* kChat =
    R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0})";
inline constexpr const char* kLong =
    R"({"messages": [{"role": "user", "content": "hi"}], "ignore_eos": true, "max_tokens": 4000, "stream": false})";
inline constexpr const char* kLongStream =
    R"({"messages": [{"role": "user", "content": "hi"}], "ignore_eos": true, "max_tokens": 4000, "stream": true})";

inline Json error_of(const httplib::Result& result) {
  EXPECT_TRUE(result);
  if (!result) return nullptr;
  EXPECT_GE(result->status, 400);
  const Json json = Json::parse(result->body, nullptr, false);
  EXPECT_TRUE(json.is_object() && json.contains("error")) << result->body;
  return json.is_object() && json.contains("error") ? json["error"] : Json(Json::object());
}

inline std::vector<Json> events(const std::string& body) {
  std::vector<Json> list;
  size_t at = 0;
  while ((at = body.find("data: ", at)) != std::string::npos) {
    at += 6;
    const std::string line = body.substr(at, body.find("\n\n", at) - at);
    if (line != "[DONE]") list.push_back(Json::parse(line));
  }
  return list;
}

}  // namespace kvilt::server
