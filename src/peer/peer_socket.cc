#include "peer/peer_socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "base/error.h"
#include "peer/peer_names.h"

namespace kvilt {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int64_t kBytesPerMillisecond = 1000;  // a slower way is none

Error lost(const std::string& why) { return error(Code::kUnavailable, "{}", why); }
Error lost_by_errno() { return lost(std::strerror(errno)); }

// Returns when it is ready. until: none: as long as it takes. cancel: as connect()'s.
Status wait_for(int fd, short what, std::optional<Clock::time_point> until, int cancel = -1) {
  for (;;) {
    int left = -1;
    if (until) {
      const auto ms = std::chrono::ceil<milliseconds>(*until - Clock::now()).count();
      if (ms <= 0) return lost("it is too slow");
      left = static_cast<int>(std::min<int64_t>(ms, std::numeric_limits<int>::max()));
    }
    pollfd watched[2] = {{fd, what, 0}, {cancel, POLLIN, 0}};
    const int ready = ::poll(watched, 2, left);
    if (ready > 0 && watched[1].revents != 0) return lost("it is no longer wanted");
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

OpenFile socket_of(const addrinfo& of) {
  return OpenFile(::socket(of.ai_family, of.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, of.ai_protocol));
}

Status connect_to(int fd, const addrinfo& to, Clock::time_point until, int cancel) {
  if (::connect(fd, to.ai_addr, to.ai_addrlen) == 0) return {};
  if (errno != EINPROGRESS) return lost_by_errno();
  KVILT_TRY(wait_for(fd, POLLOUT, until, cancel));
  int failed = 0;
  socklen_t size = sizeof failed;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size) != 0) return lost_by_errno();
  return failed == 0 ? Status() : Status(lost(std::strerror(failed)));
}

}  // namespace

Result<PeerSocket> PeerSocket::connect(const PeerAddress& address, milliseconds patience, int cancel) {
  KVILT_ASSIGN(const PeerAddresses addresses,
               addresses_unless(cancel, address, [](const PeerAddress& of) { return addresses_of(of, 0); }));
  const auto until = Clock::now() + patience;
  Status done = lost("it has no address");
  for (const addrinfo* at = addresses.get(); at; at = at->ai_next) {
    OpenFile file = socket_of(*at);
    if (file.fd() < 0) return lost_by_errno();
    done = connect_to(file.fd(), *at, until, cancel);
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

Status PeerSocket::wait(std::optional<milliseconds> patience) const {
  return wait_for(file_.fd(), POLLIN, patience ? std::optional(Clock::now() + *patience) : std::nullopt);
}

std::string PeerSocket::place() const {
  sockaddr_storage other{};
  socklen_t size = sizeof other;
  if (::getpeername(file_.fd(), reinterpret_cast<sockaddr*>(&other), &size) != 0) return {};
  const auto text = [](const auto& bytes, size_t count) {
    return std::string(reinterpret_cast<const char*>(&bytes), count);
  };
  if (other.ss_family == AF_INET) return text(reinterpret_cast<const sockaddr_in&>(other).sin_addr, 4);
  if (other.ss_family != AF_INET6) return {};
  const in6_addr& six = reinterpret_cast<const sockaddr_in6&>(other).sin6_addr;
  return IN6_IS_ADDR_V4MAPPED(&six) ? text(six.s6_addr[12], 4) : text(six.s6_addr[0], 8);
}

void PeerSocket::shut_down() const { ::shutdown(file_.fd(), SHUT_RDWR); }

Result<PeerListener> PeerListener::open(const PeerAddress& address) {
  KVILT_ASSIGN(const PeerAddresses addresses, addresses_of(address, AI_PASSIVE));
  const addrinfo& at = *addresses;
  OpenFile file = socket_of(at);
  const int on = 1;
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (file.fd() < 0 || ::setsockopt(file.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(file.fd(), at.ai_addr, at.ai_addrlen) != 0 || ::listen(file.fd(), 128) != 0 ||
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
