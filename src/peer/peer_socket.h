// peer/peer_socket.h: TCP between the servers of a pair: connect, listen, and bytes that come and go in time.
// Invariants: nothing waits longer than its patience and the time that its bytes take at 1 MB/s, but for the first byte
//             of what may come at any time. A connection whose other machine is gone ends by itself (keepalive).
// Threads:    one sends while another receives; shut_down() from any, and both return.
// Errors:     kUnavailable.
// Not here:   names (peer_names.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "base/open_file.h"
#include "kvilt/result.h"
#include "peer/peer_address.h"

namespace kvilt {

class PeerSocket {
 public:
  // cancel: a file that ends it when it can be read; below 0: none. patience: but for looking up the name.
  static Result<PeerSocket> connect(const PeerAddress& address, std::chrono::milliseconds patience, int cancel = -1);
  explicit PeerSocket(OpenFile file) : file_(std::move(file)) {}  // a connected, non-blocking one

  Status send(std::span<const std::byte> bytes, std::chrono::milliseconds patience) const;
  // All of `out`.
  Status receive(std::span<std::byte> out, std::chrono::milliseconds patience) const;
  // Returns when something may be received, or it ended. No patience: as long as that takes.
  Status wait(std::optional<std::chrono::milliseconds> patience = std::nullopt) const;
  // Whose the other end is, for shares among strangers: its IPv4 address, or the first half of its IPv6 one.
  std::string place() const;
  void shut_down() const;
  int fd() const { return file_.fd(); }

 private:
  OpenFile file_;
};

class PeerListener {
 public:
  // Errors: kInvalidArgument (no such address), kIo (it is taken).
  static Result<PeerListener> open(const PeerAddress& address);
  int port() const { return port_; }  // a given 0 is another one here
  // The next connection. Nothing: it was shut down.
  std::optional<PeerSocket> accept() const;
  void shut_down() const;
  int fd() const { return file_.fd(); }

 private:
  PeerListener(OpenFile file, int port) : file_(std::move(file)), port_(port) {}
  OpenFile file_;
  int port_;
};

}  // namespace kvilt
