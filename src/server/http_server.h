// server/http_server.h: cpp-httplib's server with a bounded set of threads, our Connection, and an orderly end.
// Role:       accepts connections, gives each a thread with its first byte (waiting_room.h refuses those above
//             max_connections with 503), runs the library's parser and handlers.
// Invariants: one thread serves one connection at a time; a refused client gets an answer, not a reset.
// Threads:    run() blocks its caller; stop_accepting() and abort_connections() from any thread.
// Not here:   what a request means (routes*.cc).
#pragma once

#include <httplib.h>

#include <atomic>
#include <memory>
#include <string>

#include "kvilt/result.h"
#include "server/connection.h"

namespace kvilt::server {

class ConnectionPool;
class WaitingRoom;

class HttpServer : public httplib::Server {
 public:
  // keep_no_text: the log has no words of exceptions, which may be a request's.
  HttpServer(ConnectionLimits limits, int max_connections, bool keep_no_text);
  ~HttpServer() override;

  // What the log says of one.
  std::string words_of(const std::exception& e) const;

  // Returns the port, or -1 with errno set. port 0: any free one.
  int bind(const std::string& host, int port);
  // Serves until stop_accepting(), or until the listening socket is lost (kIo); returns when every connection has ended.
  // An error of accept() that passes, such as a full table of the system's, ends nothing.
  Status run();
  // Requests that run go on; idle connections close, and new ones get a 503, until stop_accepting().
  void begin_drain() { stop_ = true; }
  // No new connections; idle ones close; running requests go on, and the library does not learn of it: it would cut
  // off every stream that it asks about. Idempotent.
  void stop_accepting();
  // Every read and write fails from now on (after the grace of a shutdown).
  void abort_connections() { abort_ = true; }

  int open_connections() const { return open_; }  // that have a thread
  uint64_t refused_connections() const { return refused_; }

 protected:
  // The next connection's socket, or -1 with errno set; a test lets it fail.
  virtual int accept_connection();

 private:
  int accept_until_stopped(WaitingRoom& room);  // 0, or the errno by which the listening socket was lost
  std::unique_ptr<ConnectionPool> make_pool();
  void serve_to_end(int sock);
  void serve(int sock);
  Connection::Head read_head(Connection& connection, const std::function<bool()>& give_way);
  void answer_probe(int sock);
  void refuse(int sock);

  const ConnectionLimits limits_;
  const int max_connections_;
  const bool keep_no_text_;
  std::atomic<bool> stop_{false};  // no new requests
  std::atomic<bool> shut_{false};  // and no new connections
  std::atomic<bool> abort_{false};
  std::atomic<int> open_{0}, idle_{0};
  std::atomic<uint64_t> refused_{0};
  ConnectionPool* pool_ = nullptr;  // while it runs
};

}  // namespace kvilt::server
