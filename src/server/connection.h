// server/connection.h: one client socket as cpp-httplib sees it, with the limits that the library lacks.
// Role:       an httplib::Stream over a socket: bounded head, bounded body, deadlines, and "is the client still
//             there?".
// Idea:       httplib 0.11.4 parses heads and bodies well enough, but bounds neither the number of headers nor a
//             chunked body, decodes compressed bodies without a limit, matches Range with a recursive regex, uses
//             select(), and cannot tell a handler that its client went away (docs/server.md, "Why our own connection
//             loop"). So the head is read and checked here first, and the library reads it from our buffer.
// Invariants: no read or write waits beyond its deadline; no more than limits.head + limits.body bytes are kept. Who
//             sends empty lines, or takes its answer byte by byte, does not hold the thread for longer.
// Threads:    one connection belongs to one thread; Connection::current() is that thread's.
// Not here:   routing and JSON (routes*.cc), the thread pool (http_server.h).
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace kvilt::server {

using Clock = std::chrono::steady_clock;

struct ConnectionLimits {
  size_t head_bytes = 32 * 1024;
  size_t body_bytes = 16 * 1024 * 1024;
  double idle_s = 30;                    // between two requests of one connection
  double head_s = 10;                    // from a request's first byte to the end of its head
  double body_s = 60;                    // from the end of the head to the end of the body
  double write_s = 30;                   // without any progress
  size_t write_floor_bytes = 16 * 1024;  // that a client takes at least in each write_s in which bytes wait for it
};

// What the head says about a request. status 0: nothing is wrong.
struct HeadVerdict {
  int status = 0;
  std::string message;
  // As it was sent: the library would decode % in it. `x-api-key: KEY` reads as `Bearer KEY`; a head has one of both.
  std::string authorization;
  std::string content_type = {};
};

// Checks a whole head (with its blank line) and removes the fields that the library must not see (Range,
// Accept-Encoding, the Content-Type of a form, which it would take apart itself). Pure.
HeadVerdict check_head(std::string& head, size_t max_body_bytes);

class Connection : public httplib::Stream {
 public:
  // stop: closes idle connections at once; abort: fails every read and write at once. Both outlive the connection.
  Connection(int socket, const ConnectionLimits& limits, const std::atomic<bool>& stop, const std::atomic<bool>& abort);
  ~Connection() override;

  // The connection that this thread serves now; null outside of one.
  static Connection* current();

  enum class Head { kReady, kClosed, kTooLarge, kTimeout, kBlank };  // kBlank: empty lines, and no request
  // Waits for the next request and reads its head. An idle connection closes when `give_way`, asked about ten times a
  // second, says so.
  Head read_head(const std::function<bool()>& give_way);
  const HeadVerdict& verdict() const { return verdict_; }

  // The client closed its side, or the socket failed. Costs one poll().
  bool peer_gone() const;

  void close_after_response() { close_ = true; }
  bool must_close() const { return close_; }
  bool body_too_large() const { return body_too_large_; }

  // While set, a blocked write gives up when it returns true. Asked about ten times a second.
  void set_write_guard(std::function<bool()> guard) { write_guard_ = std::move(guard); }

  // Sends FIN, then reads and drops what the client still sends, for a bounded time: a close with unread bytes would
  // reset the connection and take the response with it.
  void linger();

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* data, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override;

 private:
  bool wait(short events, Clock::time_point deadline, const std::function<bool()>* give_up) const;
  ssize_t receive(char* data, size_t size);
  bool wait_to_write(Clock::time_point deadline);

  const int socket_;
  const ConnectionLimits limits_;
  const std::atomic<bool>& stop_;
  const std::atomic<bool>& abort_;
  std::string head_;      // checked, on its way to the library
  size_t head_at_ = 0;    // bytes of it already handed over
  std::string buffer_;    // received after the head
  size_t body_read_ = 0;  // bytes of this request's body handed over
  Clock::time_point body_deadline_;
  HeadVerdict verdict_;
  bool close_ = false, body_too_large_ = false;
  std::function<bool()> write_guard_;
  // Since the floor was looked at last, over all writes: the time for which the socket was full, and what it took.
  Clock::duration blocked_{};
  size_t taken_ = 0;
};

}  // namespace kvilt::server
