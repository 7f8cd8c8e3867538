#include "peer/peer_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <thread>

#include "base/error.h"

namespace kvilt {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int64_t kBytesPerMillisecond = 1000;  // a slower way is none

Error lost(const std::string& why) { return error(Code::kUnavailable, "{}", why); }
Error lost_by_errno() { return lost(std::strerror(errno)); }

// Whether it is ready. REQUIRES: patience of 0 or more; none: as long as it takes.
Status wait_for(int fd, short what, std::optional<Clock::time_point> until) {
  for (;;) {
    int left = -1;
    if (until) {
      const auto ms = std::chrono::ceil<milliseconds>(*until - Clock::now()).count();
      if (ms <= 0) return lost("it is too slow");
      left = static_cast<int>(std::min<int64_t>(ms, std::numeric_limits<int>::max()));
    }
    pollfd watched{fd, what, 0};
    const int ready = ::poll(&watched, 1, left);
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return lost_by_errno();
  }
}

Clock::time_point deadline(milliseconds patience, size_t bytes) {
  return Clock::now() + patience + milliseconds(static_cast<int64_t>(bytes) / kBytesPerMillisecond);
}

// Small messages go at once; a machine that is gone is found out within some 15 seconds.
void set_up(int fd) {
  const auto set = [fd](int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof value); };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 3);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 15000);
}

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Result<Addresses> look_up(const PeerAddress& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (failed != 0) return error(Code::kInvalidArgument, "{}: {}", address.shown(), ::gai_strerror(failed));
  return Addresses(found, &::freeaddrinfo);
}

OpenFile socket_of(const addrinfo& of) {
  return OpenFile(::socket(of.ai_family, of.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, of.ai_protocol));
}

Status connect_to(int fd, const addrinfo& to, Clock::time_point until) {
  if (::connect(fd, to.ai_addr, to.ai_addrlen) == 0) return {};
  if (errno != EINPROGRESS) return lost_by_errno();
  KVILT_TRY(wait_for(fd, POLLOUT, until));
  int failed = 0;
  socklen_t size = sizeof failed;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size) != 0) return lost_by_errno();
  return failed == 0 ? Status() : Status(lost(std::strerror(failed)));
}

}  // namespace

Result<PeerSocket> PeerSocket::connect(const PeerAddress& address, milliseconds patience) {
  auto addresses = look_up(address, 0);
  if (!addresses.ok()) return lost(addresses.error().message);
  const auto until = Clock::now() + patience;
  Status done = lost("it has no address");
  for (const addrinfo* at = addresses->get(); at; at = at->ai_next) {
    OpenFile file = socket_of(*at);
    if (file.fd() < 0) return lost_by_errno();
    done = connect_to(file.fd(), *at, until);
    if (!done.ok()) continue;
    set_up(file.fd());
    return PeerSocket(std::move(file));
  }
  return done.error();
}

Status PeerSocket::send(std::span<const std::byte> bytes, milliseconds patience) const {
  const auto until = deadline(patience, bytes.size());
  while (!bytes.empty()) {
    const ssize_t n = ::send(file_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
    } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
      return lost_by_errno();
    } else {
      KVILT_TRY(wait_for(file_.fd(), POLLOUT, until));
    }
  }
  return {};
}

Status PeerSocket::receive(std::span<std::byte> out, milliseconds patience) const {
  const auto until = deadline(patience, out.size());
  while (!out.empty()) {
    const ssize_t n = ::recv(file_.fd(), out.data(), out.size(), 0);
    if (n > 0) {
      out = out.subspan(static_cast<size_t>(n));
    } else if (n == 0) {
      return lost("it closed the connection");
    } else if (errno != EAGAIN && errno != EINTR) {
      return lost_by_errno();
    } else {
      KVILT_TRY(wait_for(file_.fd(), POLLIN, until));
    }
  }
  return {};
}

Status PeerSocket::wait() const { return wait_for(file_.fd(), POLLIN, std::nullopt); }

void PeerSocket::shut_down() const { ::shutdown(file_.fd(), SHUT_RDWR); }

Result<PeerListener> PeerListener::open(const PeerAddress& address) {
  KVILT_ASSIGN(const Addresses addresses, look_up(address, AI_PASSIVE));
  const addrinfo& at = *addresses;
  OpenFile file = socket_of(at);
  const int on = 1;
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (file.fd() < 0 || ::setsockopt(file.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(file.fd(), at.ai_addr, at.ai_addrlen) != 0 || ::listen(file.fd(), 16) != 0 ||
      ::getsockname(file.fd(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    return system_error(address.shown());
  const auto port = bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                                : reinterpret_cast<const sockaddr_in&>(bound).sin_port;
  return PeerListener(std::move(file), ntohs(port));
}

std::optional<PeerSocket> PeerListener::accept() const {
  for (;;) {
    if (!wait_for(file_.fd(), POLLIN, std::nullopt).ok()) return std::nullopt;
    OpenFile file(::accept4(file_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (file.fd() >= 0) {
      set_up(file.fd());
      return PeerSocket(std::move(file));
    }
    if (errno == EINVAL || errno == EBADF) return std::nullopt;  // shut down
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
      std::this_thread::sleep_for(milliseconds(100));
  }
}

void PeerListener::shut_down() const { ::shutdown(file_.fd(), SHUT_RDWR); }

}  // namespace kvilt
