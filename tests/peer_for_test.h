// tests/peer_for_test.h: what may stand between two servers of a pair, or in place of one.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "peer/peer_channel.h"
#include "peer/peer_message.h"

namespace kvilt {

// Takes connections one after the other and passes bytes on; of what comes from the server a limited number.
class PeerProxyForTest {
 public:
  enum class Then { kClose, kStall, kFlip };
  // passes: bytes of each connection, of those from the server.
  PeerProxyForTest(int port, int64_t passes, Then then)
      : listener_(PeerListener::open({"127.0.0.1", 0}).value()), port_(port), passes_(passes), then_(then) {
    thread_ = std::thread([this] { run(); });
  }
  ~PeerProxyForTest() {
    ends_ = true;
    listener_.shut_down();
    thread_.join();
  }
  int port() const { return listener_.port(); }

 private:
  void run() {
    while (auto client = listener_.accept()) {
      auto server = PeerSocket::connect({"127.0.0.1", port_}, std::chrono::milliseconds(5000));
      if (server.ok()) pass(*client, *server);
    }
  }
  void pass(const PeerSocket& client, const PeerSocket& server) {
    std::vector<std::byte> buffer(1 << 16);
    int64_t left = passes_;
    while (!ends_) {
      pollfd watched[2] = {{client.fd(), POLLIN, 0}, {server.fd(), POLLIN, 0}};
      if (::poll(watched, 2, 20) <= 0) continue;
      for (int side = 0; side < 2; ++side) {
        if (watched[side].revents == 0) continue;
        const ssize_t n = ::recv(watched[side].fd, buffer.data(), buffer.size(), 0);
        if (n <= 0) return;
        auto size = static_cast<size_t>(n);
        if (side == 1) {
          const bool over = n > left;
          if (over && then_ == Then::kClose) return;
          if (over && then_ == Then::kStall) size = static_cast<size_t>(left);
          if (over && then_ == Then::kFlip) buffer[size / 2] ^= std::byte{4};
          left = std::max<int64_t>(0, left - n);
        }
        const PeerSocket& to = side == 0 ? server : client;
        if (!to.send({buffer.data(), size}, std::chrono::milliseconds(5000)).ok()) return;
      }
    }
  }

  const PeerListener listener_;
  const int port_;
  const int64_t passes_;
  const Then then_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

// A prefill server that says of itself what who asks wants to hear, and answers asks as it is told.
class FakePeerForTest {
 public:
  using Answers = std::function<std::vector<PeerMessage>(const PeerAsk&)>;
  explicit FakePeerForTest(Answers answers, Digest maker_off = {})
      : listener_(PeerListener::open({"127.0.0.1", 0}).value()), answers_(std::move(answers)), off_(maker_off) {
    thread_ = std::thread([this] {
      while (auto client = listener_.accept()) serve(std::move(*client));
    });
  }
  ~FakePeerForTest() {
    listener_.shut_down();
    {
      std::lock_guard lock(mutex_);
      if (now_) now_->shut_down();
    }
    thread_.join();
  }
  int port() const { return listener_.port(); }
  static HashSecret no_key() { return *HashSecret::of(std::string(32, '\0')); }
  std::atomic<int> asked{0};
  std::atomic<uint32_t> token_bytes{0};

 private:
  void serve(PeerSocket client) {
    const auto socket = std::make_shared<const PeerSocket>(std::move(client));
    {
      std::lock_guard lock(mutex_);
      now_ = socket;
    }
    auto channel = PeerChannel::open(socket, PeerChannel::Side::kAnswers, no_key());
    if (!channel.ok()) return;
    const auto next = [&]() -> std::optional<PeerMessage> {
      const auto bytes = (*channel)->receive(1 << 20);
      if (!bytes.ok()) return std::nullopt;
      return parse_message(*bytes).value();
    };
    const auto hello = next();
    if (!hello) return;
    PeerHello own = std::get<PeerHello>(*hello);
    token_bytes = own.token_bytes;
    for (size_t i = 0; i < off_.size(); ++i) own.maker[i] ^= off_[i];
    if (!(*channel)->send(bytes_of_message(own)).ok()) return;
    while (const auto message = next()) {
      const auto* ask = std::get_if<PeerAsk>(&*message);
      if (!ask) continue;
      ++asked;
      for (const PeerMessage& answer : answers_(*ask)) {
        if (!(*channel)->send(bytes_of_message(answer)).ok()) return;
      }
    }
  }

  const PeerListener listener_;
  const Answers answers_;
  const Digest off_;
  std::mutex mutex_;
  std::shared_ptr<const PeerSocket> now_;
  std::thread thread_;
};

}  // namespace kvilt
