// server/live_server_for_test.h: a server on a free port of loopback that serves the fake engine, and clients for it.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/checked_whole.h"
#include "server/fake_engine.h"
#include "server/json_fields.h"
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
    thread_ = std::thread([this] { server->run(); });
    if (attach) server->attach(engine);
  }
  ~LiveServer() {
    server->shutdown();
    thread_.join();
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

 private:
  std::thread thread_;
};

// A client that sends bytes, not requests.
class RawClient {
 public:
  explicit RawClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~RawClient() { close(); }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  bool connected() const { return connected_; }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // Reads until the text holds `until`, the connection ends, or nothing has come for a while.
  std::string receive(const std::string& until = "", int patience_ms = 10000) {
    std::string text;
    char block[4096];
    while (until.empty() || text.find(until) == std::string::npos) {
      pollfd poller{socket_, POLLIN, 0};
      if (::poll(&poller, 1, patience_ms) <= 0) break;
      const ssize_t n = ::recv(socket_, block, sizeof block, 0);
      if (n <= 0) {
        ended_ = true;
        break;
      }
      text.append(block, static_cast<size_t>(n));
    }
    return text;
  }
  bool ended() const { return ended_; }

 private:
  int socket_;
  bool connected_ = false, ended_ = false;
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
