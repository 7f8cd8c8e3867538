// server/raw_client_for_test.h: a client of the loopback that sends bytes, whole requests or not.
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <string_view>

namespace kvilt::server {

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

}  // namespace kvilt::server
