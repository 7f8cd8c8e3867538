#include "server/http_server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "server/api_error.h"

namespace kvilt::server {
namespace {

// Set while a task runs on the thread that only refuses, or is dropped because even that thread cannot keep up.
enum class Mode { kServe, kRefuse, kDrop };
thread_local Mode mode = Mode::kServe;

constexpr size_t kRefusalBacklog = 64;
constexpr int kListenBacklog = 256;  // httplib's own is 5

// An answer to a client whose request never reaches the library.
std::string canned(int status, std::string_view reason, const ApiError& error) {
  const std::string body = error_body(error);
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: application/json\r\nConnection: close\r\n{}Content-Length: {}\r\n\r\n{}", status,
      reason, status == 503 ? "Retry-After: 1\r\n" : "", body.size(), body);
}

void answer_and_close(Connection& connection, int status, std::string_view reason, std::string message) {
  const std::string text = canned(status, reason, {status, std::move(message), "", ""});
  connection.write(text.data(), text.size());
  connection.linger();
}

}  // namespace

// Starts threads when they are first needed, up to the limit. One more thread refuses what exceeds it.
class ConnectionPool : public httplib::TaskQueue {
 public:
  explicit ConnectionPool(int limit) : limit_(limit) {
    refuser_ = std::thread([this] { work(Mode::kRefuse); });
  }

  void enqueue(std::function<void()> task) override {
    {
      MutexLock lock(mutex_);
      if (outstanding_ < limit_ && has_thread_for(outstanding_ + 1)) {
        ++outstanding_;
        tasks_.push_back(std::move(task));
        changed_.notify_all();
        return;
      }
      if (refusals_.size() < kRefusalBacklog) {
        refusals_.push_back(std::move(task));
        changed_.notify_all();
        return;
      }
    }
    mode = Mode::kDrop;
    task();
    mode = Mode::kServe;
  }

  void shutdown() override {
    {
      MutexLock lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
    refuser_.join();
  }

 private:
  // False: the system starts no more threads.
  bool has_thread_for(int tasks) {
    if (tasks <= static_cast<int>(threads_.size())) return true;
    try {
      threads_.emplace_back([this] { work(Mode::kServe); });
    } catch (const std::system_error& e) {
      spdlog::warn("no thread for another connection: {}", e.what());
      return false;
    }
    return true;
  }

  void work(Mode thread_mode) {
    mode = thread_mode;
    MutexLock lock(mutex_);
    auto& queue = thread_mode == Mode::kServe ? tasks_ : refusals_;
    for (;;) {
      changed_.wait(lock, [&]() KVILT_REQUIRES(mutex_) { return stop_ || !queue.empty(); });
      if (queue.empty()) return;
      auto task = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      task();
      lock.lock();
      if (thread_mode == Mode::kServe) --outstanding_;
    }
  }

  const int limit_;
  Mutex mutex_;
  Condition changed_;
  std::deque<std::function<void()>> tasks_ KVILT_GUARDED_BY(mutex_), refusals_ KVILT_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;              // appended by the accepting thread only
  int outstanding_ KVILT_GUARDED_BY(mutex_) = 0;  // tasks queued or running
  bool stop_ KVILT_GUARDED_BY(mutex_) = false;
  std::thread refuser_;
};

HttpServer::HttpServer(ConnectionLimits limits, int max_connections)
    : limits_(limits), max_connections_(max_connections) {
  new_task_queue = [this] { return new ConnectionPool(max_connections_); };  // httplib takes ownership
  set_keep_alive_timeout(static_cast<time_t>(limits_.idle_s));               // what the Keep-Alive header says
  set_keep_alive_max_count(1000);
  // httplib's default, SO_REUSEPORT, would let a second server take the same port and half of the requests.
  set_socket_options([](socket_t sock) {
    const int on = 1;
    ::setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  });
}

HttpServer::~HttpServer() {
  stop_accepting();
  if (closing_ != INVALID_SOCKET) ::close(closing_);
}

int HttpServer::bind(const std::string& host, int port) {
  int bound = port;
  if (port == 0) {
    bound = bind_to_any_port(host);
  } else if (!bind_to_port(host, port)) {
    bound = -1;
  }
  if (bound > 0 && ::listen(svr_sock_, kListenBacklog) != 0) return -1;
  return bound;
}

void HttpServer::run() {
  if (!stop_) listen_after_bind();
}

void HttpServer::stop_accepting() {
  stop_ = true;
  // httplib's stop() closes the socket while accept() may still use its number; here accept() wakes first and the
  // number stays taken until the end.
  const socket_t sock = svr_sock_.exchange(INVALID_SOCKET);
  if (sock == INVALID_SOCKET) return;
  closing_ = sock;
  ::shutdown(sock, SHUT_RDWR);
}

bool HttpServer::process_and_close_socket(socket_t sock) {
  switch (mode) {
    case Mode::kServe:
      ++open_;
      try {
        serve(sock);
      } catch (const std::exception& e) {  // while a stream was written: the library catches only what handlers throw
        spdlog::error("a connection ended: {}", e.what());
      }
      --open_;
      break;
    case Mode::kRefuse:
      refuse(sock);
      break;
    case Mode::kDrop:
      ++refused_;
      break;
  }
  ::shutdown(sock, SHUT_RDWR);
  ::close(sock);
  return true;
}

void HttpServer::serve(int sock) {
  Connection connection(sock, limits_, stop_, abort_);
  // When every thread is taken, a client that only keeps its connection for later gives way to one that waits.
  const std::function<bool()> crowded = [this] { return open_ >= max_connections_; };
  for (bool first = true;; first = false) {
    switch (connection.read_head(first ? nullptr : crowded)) {
      case Connection::Head::kClosed:
        return;
      case Connection::Head::kTooLarge:
        return answer_and_close(connection, 431, "Request Header Fields Too Large",
                                fmt::format("the request line and headers exceed {} bytes", limits_.head_bytes));
      case Connection::Head::kTimeout:
        return answer_and_close(connection, 408, "Request Timeout", "the request's head came too slowly");
      case Connection::Head::kReady:
        break;
    }
    bool client_closes = false;
    const bool close = connection.must_close() || stop_;
    const bool answered = process_request(connection, close, client_closes, nullptr);
    connection.set_write_guard(nullptr);
    if (connection.must_close() || close) return connection.linger();
    if (!answered || client_closes) return;
  }
}

void HttpServer::refuse(int sock) {
  ++refused_;
  Connection connection(sock, limits_, stop_, abort_);
  answer_and_close(connection, 503, "Service Unavailable",
                   fmt::format("all {} connections of this server are in use: try again soon", max_connections_));
}

}  // namespace kvilt::server
