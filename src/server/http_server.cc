#include "server/http_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <new>
#include <string_view>
#include <system_error>
#include <thread>
#include <typeinfo>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "server/api_error.h"
#include "server/waiting_room.h"

namespace kvilt::server {
namespace {

constexpr int64_t kMostWaiting = 512;  // connections without a thread; less where the process may open few files
constexpr int kListenBacklog = 256;    // httplib's own is 5

constexpr std::chrono::milliseconds kAcceptPause{10};

// Errors of accept() that no later call is without.
bool is_lost(int error) {
  return error == EBADF || error == EINVAL || error == ENOTSOCK || error == EOPNOTSUPP || error == EFAULT;
}

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

// Starts threads when they are first needed, up to the limit. The waiting room hands them their connections.
class ConnectionPool {
 public:
  // serve: serves a socket until it is closed. room: `admit` says whether anybody is let in at all.
  ConnectionPool(int limit, std::function<void(int)> serve, WaitingRoom::Options room)
      : limit_(limit), serve_(std::move(serve)) {
    room.admit = [this, open = std::move(room.admit)](int sock) { return open(sock) && admit(sock); };
    room_ = std::make_unique<WaitingRoom>(std::move(room));
  }

  // Until every connection has ended.
  ~ConnectionPool() {
    room_->leave();
    {
      MutexLock lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  WaitingRoom& room() { return *room_; }

 private:
  // False: there is no thread for it, or no memory.
  bool admit(int sock) {
    MutexLock lock(mutex_);
    if (outstanding_ >= limit_) return false;
    try {
      if (outstanding_ >= static_cast<int>(threads_.size())) threads_.emplace_back([this] { work(); });
      sockets_.push_back(sock);
    } catch (const std::system_error& e) {
      spdlog::warn("no thread for another connection: {}", e.what());
      return false;
    } catch (const std::bad_alloc&) {
      return false;
    }
    ++outstanding_;
    changed_.notify_one();
    return true;
  }

  void work() {
    MutexLock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&]() KVILT_REQUIRES(mutex_) { return stop_ || !sockets_.empty(); });
      if (sockets_.empty()) return;
      const int sock = sockets_.front();
      sockets_.pop_front();
      lock.unlock();
      serve_(sock);
      lock.lock();
      --outstanding_;
      room_->look_again();
    }
  }

  const int limit_;
  const std::function<void(int)> serve_;
  Mutex mutex_;
  Condition changed_;
  std::deque<int> sockets_ KVILT_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;              // appended by the waiting room's thread only, until it has ended
  int outstanding_ KVILT_GUARDED_BY(mutex_) = 0;  // sockets queued or served
  bool stop_ KVILT_GUARDED_BY(mutex_) = false;
  std::unique_ptr<WaitingRoom> room_;
};

HttpServer::HttpServer(ConnectionLimits limits, int max_connections, bool keep_no_text)
    : limits_(limits), max_connections_(max_connections), keep_no_text_(keep_no_text) {
  set_keep_alive_timeout(static_cast<time_t>(limits_.idle_s));  // what the Keep-Alive header says
  set_keep_alive_max_count(1000);
  // httplib's default, SO_REUSEPORT, would let a second server take the same port and half of the requests.
  set_socket_options([](socket_t sock) {
    const int on = 1;
    ::setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  });
}

std::string HttpServer::words_of(const std::exception& e) const { return keep_no_text_ ? typeid(e).name() : e.what(); }

HttpServer::~HttpServer() {
  if (svr_sock_ != INVALID_SOCKET) ::close(svr_sock_);
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

Status HttpServer::run() {
  if (shut_) return {};
  const std::unique_ptr<ConnectionPool> pool = make_pool();
  pool_ = pool.get();
  const int why = accept_until_stopped(pool->room());
  stop_ = true;  // what is open ends as in a shutdown
  if (why == 0) return {};
  return error(Code::kIo, "no connection can be accepted any more: {}", std::strerror(why));
}

// Not the library's loop, which ends for ever at the first error but EMFILE.
int HttpServer::accept_until_stopped(WaitingRoom& room) {
  for (bool failed = false; !shut_;) {
    const int sock = accept_connection();
    if (sock >= 0) {
      failed = false;
      try {
        room.enter(sock);
      } catch (const std::bad_alloc&) {
        ::close(sock);
      }
      continue;
    }
    const int why = errno;
    if (shut_) return 0;
    if (is_lost(why)) return why;
    // Of the system's tables, or of this one connection: a moment later there may be room.
    if (!failed) spdlog::warn("a connection cannot be accepted, and is tried again: {}", std::strerror(why));
    failed = true;
    std::this_thread::sleep_for(kAcceptPause);
  }
  return 0;
}

int HttpServer::accept_connection() { return ::accept4(svr_sock_, nullptr, nullptr, SOCK_CLOEXEC); }

void HttpServer::stop_accepting() {
  stop_ = true;
  if (shut_.exchange(true) || svr_sock_ == INVALID_SOCKET) return;
  // httplib's stop() would mark its socket as invalid. Its writers of streams take that mark for a reason to write
  // nothing more, and they look before the first byte too. Here accept() fails, and the number stays ours.
  ::shutdown(svr_sock_, SHUT_RDWR);
}

std::unique_ptr<ConnectionPool> HttpServer::make_pool() {
  rlimit files{};
  const bool bounded = ::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < (1 << 20);
  const int64_t most = bounded ? static_cast<int64_t>(files.rlim_cur) : 1 << 20;
  WaitingRoom::Options room;
  room.places = static_cast<size_t>(std::clamp<int64_t>((most - max_connections_) / 2, 16, kMostWaiting));
  room.silent_s = limits_.idle_s;
  room.admit = [this](int) { return !stop_; };
  room.idle = [this] { return stop_ ? 0 : idle_.load(); };
  room.answer_probe = [this](int sock) { answer_probe(sock); };
  room.refuse = [this](int sock) { refuse(sock); };
  return std::make_unique<ConnectionPool>(
      max_connections_, [this](int sock) { serve_to_end(sock); }, std::move(room));
}

void HttpServer::serve_to_end(int sock) {
  ++open_;
  try {
    serve(sock);
  } catch (const std::exception& e) {  // while a stream was written: the library catches only what handlers throw
    spdlog::error("a connection ended: {}", words_of(e));
  }
  --open_;
  ::shutdown(sock, SHUT_RDWR);
  ::close(sock);
}

// give_way: of a connection that is only kept for later, which counts as idle meanwhile; null for a new one.
Connection::Head HttpServer::read_head(Connection& connection, const std::function<bool()>& give_way) {
  if (!give_way) return connection.read_head(give_way);
  struct Idle {
    explicit Idle(std::atomic<int>& count) : of(count) { ++of; }
    ~Idle() { --of; }
    std::atomic<int>& of;
  } counted(idle_);
  return connection.read_head(give_way);
}

void HttpServer::serve(int sock) {
  Connection connection(sock, limits_, stop_, abort_);
  // When every thread is taken, a client that only keeps its connection for later gives way to one that waits.
  const std::function<bool()> crowded = [this] { return pool_->room().gives_way(); };
  for (bool first = true;; first = false) {
    switch (read_head(connection, first ? nullptr : crowded)) {
      case Connection::Head::kClosed:
        return;
      case Connection::Head::kTooLarge:
        return answer_and_close(connection, 431, "Request Header Fields Too Large",
                                fmt::format("the request line and headers exceed {} bytes", limits_.head_bytes));
      case Connection::Head::kBlank:
        return answer_and_close(connection, 400, "Bad Request", "there are empty lines where a request line should be");
      case Connection::Head::kTimeout:
        return answer_and_close(connection, 408, "Request Timeout", "the request's head came too slowly");
      case Connection::Head::kReady:
        break;
    }
    bool client_closes = false;
    const bool close = connection.must_close() || stop_;
    const bool answered = process_request(connection, close, client_closes, nullptr);
    connection.set_write_guard(nullptr);
    if (connection.must_close() || close || stop_) return connection.linger();
    if (!answered || client_closes) return;
  }
}

// A whole GET /health or /metrics is in the socket; its answer fits into the socket's buffer. So nothing waits here.
void HttpServer::answer_probe(int sock) {
  ConnectionLimits limits = limits_;
  limits.head_s = limits.write_s = 1;
  try {
    Connection connection(sock, limits, stop_, abort_);
    bool client_closes = false;
    if (connection.read_head(nullptr) == Connection::Head::kReady) {
      process_request(connection, true, client_closes, nullptr);
    }
  } catch (const std::exception& e) {
    spdlog::error("a connection ended: {}", words_of(e));
  }
}

void HttpServer::refuse(int sock) {
  ++refused_;
  try {
    const std::string text =
        canned(503, "Service Unavailable",
               {503,
                stop_ ? "the server is shutting down"
                      : fmt::format("all {} connections of this server are in use: try again soon", max_connections_),
                "", stop_ ? "unavailable" : ""});
    // The socket is new, so its buffer takes the text whole.
    [[maybe_unused]] const ssize_t sent = ::send(sock, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } catch (const std::bad_alloc&) {  // it is closed without a word
  }
}

}  // namespace kvilt::server
