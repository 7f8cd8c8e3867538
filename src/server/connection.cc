#include "server/connection.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <strings.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <vector>

namespace kvilt::server {
namespace {

thread_local Connection* current_connection = nullptr;

constexpr size_t kMaxField = 8190;    // of one header field: httplib reads no longer line (8,192 with its end)
constexpr size_t kMaxFieldName = 64;  // of a header's name in a message
constexpr int kMostBlankLines = 8;    // before a request line
constexpr auto kTick = std::chrono::milliseconds(2);     // by which a wait may end early
constexpr auto kSlice = std::chrono::milliseconds(100);  // how soon a waiting thread sees stop, abort and guards

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

Clock::time_point after(double seconds) { return Clock::now() + duration_of(seconds); }

bool same_name(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Framing fields of one head. Anything ambiguous is refused: two readers must not disagree on where a body ends.
struct Framing {
  int lengths = 0, encodings = 0, keys = 0;
  uint64_t length = 0;
  bool bad_length = false, chunked = false, compressed = false;

  void see(std::string_view name, std::string_view value) {
    if (same_name(name, "Content-Length")) {
      ++lengths;
      auto [end, failed] = std::from_chars(value.data(), value.data() + value.size(), length);
      if (failed != std::errc() || end != value.data() + value.size()) bad_length = true;
    } else if (same_name(name, "Transfer-Encoding")) {
      ++encodings;
      chunked = same_name(value, "chunked");
    } else if (same_name(name, "Content-Encoding")) {
      compressed = !same_name(value, "identity");
    } else if (same_name(name, "Authorization") || same_name(name, "x-api-key")) {
      ++keys;
    }
  }

  HeadVerdict verdict(bool post, size_t max_body) const {
    if (keys > 1) return {400, "a request has one header with a key at most: Authorization or x-api-key", ""};
    if (bad_length || lengths > 1) return {400, "Content-Length is not one number", ""};
    if (encodings > 1 || (encodings == 1 && !chunked))
      return {400, "the only Transfer-Encoding understood is chunked", ""};
    if (lengths && encodings) return {400, "a request has either Content-Length or Transfer-Encoding, not both", ""};
    if (compressed) return {415, "compressed request bodies are not accepted: send them without Content-Encoding", ""};
    if (length > max_body) {
      return {413, fmt::format("the body has {} bytes; this server accepts at most {}", length, max_body), ""};
    }
    // The library reads the body of a POST only; that of another request would be taken for the next request.
    if (!post && (length > 0 || encodings)) return {400, "only POST requests have a body", ""};
    if (post && !lengths && !encodings) return {411, "a POST request needs a Content-Length", ""};
    return {};
  }
};

}  // namespace

HeadVerdict check_head(std::string& head, size_t max_body_bytes) {
  Framing framing;
  HeadVerdict bad;
  std::string kept, authorization, content_type;
  kept.reserve(head.size());
  bool first = true;
  for (size_t at = 0; at < head.size();) {
    size_t end = head.find("\r\n", at);
    if (end == std::string::npos) end = head.size();
    const std::string_view line(head.data() + at, end - at);
    at = std::min(end + 2, head.size());
    bool keep = true;
    if (!first && !line.empty()) {
      const size_t colon = line.find(':');
      if (line.find_first_of(std::string_view("\r\n\0", 3)) != std::string_view::npos) {
        bad = {400, "a header field holds a control character", ""};
      } else if (colon == std::string_view::npos || colon == 0 || line[colon - 1] == ' ' || line[0] == ' ' ||
                 line[0] == '\t') {
        bad = {400, "a header line is not 'Name: value'", ""};
      } else if (line.size() > kMaxField) {
        bad = {431,
               fmt::format("the header field {} has more than {} bytes", line.substr(0, std::min(colon, kMaxFieldName)),
                           kMaxField),
               ""};
        keep = false;
      } else {
        const std::string_view name = line.substr(0, colon);
        framing.see(name, trim(line.substr(colon + 1)));
        if (same_name(name, "Authorization")) authorization = trim(line.substr(colon + 1));
        if (same_name(name, "x-api-key")) authorization = "Bearer " + std::string(trim(line.substr(colon + 1)));
        const bool type = same_name(name, "Content-Type");
        if (type) content_type = trim(line.substr(colon + 1));
        const bool form = type && content_type.size() >= 10 && same_name(content_type.substr(0, 10), "multipart/");
        keep = !form && !same_name(name, "Range") && !same_name(name, "Accept-Encoding");
      }
    }
    if (keep) kept.append(line).append("\r\n");
    first = false;
  }
  HeadVerdict verdict = bad.status ? bad : framing.verdict(head.starts_with("POST "), max_body_bytes);
  verdict.authorization = std::move(authorization);
  verdict.content_type = std::move(content_type);
  head = std::move(kept);
  return verdict;
}

Connection::Connection(int socket, const ConnectionLimits& limits, const std::atomic<bool>& stop,
                       const std::atomic<bool>& abort)
    : socket_(socket), limits_(limits), stop_(stop), abort_(abort) {
  const int on = 1;  // tokens leave one by one: never wait to fill a packet
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  current_connection = this;
}

Connection::~Connection() { current_connection = nullptr; }

Connection* Connection::current() { return current_connection; }

bool Connection::wait(short events, Clock::time_point deadline, const std::function<bool()>* give_up) const {
  for (;;) {
    if (abort_ || (give_up && *give_up && (*give_up)())) return false;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd poller{socket_, events, 0};
    const int ready = ::poll(&poller, 1, static_cast<int>(std::min(left, kSlice).count()) + 1);
    if (ready > 0) return true;  // errors and hang-ups too: the call that follows reports them
    if (ready < 0 && errno != EINTR) return false;
  }
}

ssize_t Connection::receive(char* data, size_t size) {
  for (;;) {
    const ssize_t got = ::recv(socket_, data, size, MSG_DONTWAIT);
    if (got >= 0 || errno != EINTR) return got;
  }
}

Connection::Head Connection::read_head(const std::function<bool()>& give_way) {
  head_.clear();
  head_at_ = body_read_ = 0;
  body_too_large_ = close_ = false;
  verdict_ = {};
  const std::function<bool()> idle_end = [&] { return stop_.load() || (give_way && give_way()); };
  bool begun = !buffer_.empty();  // the first byte came; empty lines do not begin anew
  auto deadline = after(begun ? limits_.head_s : limits_.idle_s);
  size_t scanned = 0;
  int blank_lines = 0;
  for (;;) {
    size_t blank = 0;  // RFC 9112 2.2: tolerate some before a request line
    for (; buffer_.compare(blank, 2, "\r\n") == 0; blank += 2) ++blank_lines;
    buffer_.erase(0, blank);
    if (blank_lines > kMostBlankLines) return Head::kBlank;
    const size_t end = buffer_.find("\r\n\r\n", scanned > 3 ? scanned - 3 : 0);
    if (end != std::string::npos && end + 4 <= limits_.head_bytes) {
      head_ = buffer_.substr(0, end + 2);
      buffer_.erase(0, end + 4);
      verdict_ = check_head(head_, limits_.body_bytes);
      if (verdict_.status) close_ = true;
      head_ += "\r\n";
      body_deadline_ = after(limits_.body_s);
      return Head::kReady;
    }
    if (end != std::string::npos || buffer_.size() > limits_.head_bytes) return Head::kTooLarge;
    scanned = buffer_.size();
    const bool idle = buffer_.empty();
    char block[8192];
    const ssize_t got = receive(block, sizeof block);  // before the wait: what has come is answered, also at a stop
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!wait(POLLIN, deadline, idle ? &idle_end : nullptr)) return idle || abort_ ? Head::kClosed : Head::kTimeout;
      continue;
    }
    if (got <= 0) return Head::kClosed;
    if (!begun) deadline = after(limits_.head_s);
    begun = true;
    buffer_.append(block, static_cast<size_t>(got));
  }
}

ssize_t Connection::read(char* data, size_t size) {
  if (head_at_ < head_.size()) {
    const size_t n = head_.copy(data, size, head_at_);
    head_at_ += n;
    return static_cast<ssize_t>(n);
  }
  // Chunks of one byte take six; more than that is no honest body.
  if (body_read_ > 6 * limits_.body_bytes + limits_.head_bytes) {
    body_too_large_ = close_ = true;
    return -1;
  }
  ssize_t got = 0;
  if (!buffer_.empty()) {
    got = static_cast<ssize_t>(buffer_.copy(data, size));
    buffer_.erase(0, static_cast<size_t>(got));
  } else {
    do {
      if (!wait(POLLIN, body_deadline_, nullptr)) {
        close_ = true;
        return -1;
      }
      got = receive(data, size);
    } while (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
  }
  if (got > 0) body_read_ += static_cast<size_t>(got);
  if (got <= 0) close_ = true;
  return got;
}

// Until the socket, which is full, may take something. What it took between two times at which it was full, the client
// took: so each write_s of waiting shows how fast the client reads, however small the writes are. It is tried again after
// kSlice in any case: the system calls a socket writable when a third of its buffer is free, which may be a megabyte.
bool Connection::wait_to_write(Clock::time_point deadline) {
  const Clock::duration window = duration_of(limits_.write_s);
  if (blocked_ == Clock::duration::zero()) taken_ = 0;
  const Clock::time_point begin = Clock::now(), look = begin + std::min<Clock::duration>(kSlice, window - blocked_);
  const bool writable = wait(POLLOUT, std::min(deadline, look), &write_guard_);
  const Clock::time_point now = Clock::now();
  blocked_ += now - begin;
  if (window - blocked_ > kTick) return writable || (now >= look && now < deadline);
  blocked_ = Clock::duration::zero();
  return taken_ >= limits_.write_floor_bytes && now < deadline;
}

ssize_t Connection::write(const char* data, size_t size) {
  auto deadline = after(limits_.write_s);
  size_t sent = 0;
  while (sent < size) {
    const ssize_t n = ::send(socket_, data + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<size_t>(n);
      taken_ += static_cast<size_t>(n);
      deadline = after(limits_.write_s);
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!wait_to_write(deadline)) break;
    } else {
      break;
    }
  }
  if (sent < size) {
    close_ = true;
    return -1;
  }
  return static_cast<ssize_t>(sent);
}

bool Connection::peer_gone() const {
  if (abort_) return true;
  pollfd poller{socket_, POLLIN | POLLRDHUP, 0};
  if (::poll(&poller, 1, 0) <= 0) return false;
  return (poller.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

void Connection::linger() {
  ::shutdown(socket_, SHUT_WR);
  const auto deadline = after(1.0);
  char block[8192];
  for (size_t dropped = 0; dropped < 64 * limits_.head_bytes + limits_.body_bytes;) {
    if (!wait(POLLIN, deadline, nullptr)) return;
    const ssize_t got = receive(block, sizeof block);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) return;
    if (got > 0) dropped += static_cast<size_t>(got);
  }
}

bool Connection::is_readable() const { return !buffer_.empty() || !peer_gone(); }
bool Connection::is_writable() const { return !peer_gone(); }
socket_t Connection::socket() const { return 0; }  // httplib compares it with FD_SETSIZE for its select(); we poll()

namespace {
void address_of(int socket, int (*name_of)(int, sockaddr*, socklen_t*), std::string& ip, int& port) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char text[INET6_ADDRSTRLEN] = "";
  port = -1;
  ip.clear();
  if (name_of(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return;
  if (address.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<sockaddr_in*>(&address);
    ip = ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text) ? text : "";
    port = ntohs(v4->sin_port);
  } else if (address.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<sockaddr_in6*>(&address);
    ip = ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text) ? text : "";
    port = ntohs(v6->sin6_port);
  }
}
}  // namespace

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  address_of(
      socket_, [](int s, sockaddr* a, socklen_t* n) { return ::getpeername(s, a, n); }, ip, port);
}
void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  address_of(
      socket_, [](int s, sockaddr* a, socklen_t* n) { return ::getsockname(s, a, n); }, ip, port);
}

}  // namespace kvilt::server
