#include "tier/redis_connection.h"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <optional>

#include "base/error.h"

namespace kvilt {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int64_t kBytesPerMillisecond = 8000;  // a slower way is none
constexpr size_t kReadAtOnce = size_t{1} << 18;

Status add(const RedisCommand& command, std::string& out) {
  std::vector<const char*> data;
  std::vector<size_t> sizes;
  for (const std::string_view word : command) data.push_back(word.data()), sizes.push_back(word.size());
  char* formatted = nullptr;
  const long long size =
      redisFormatCommandArgv(&formatted, static_cast<int>(command.size()), data.data(), sizes.data());
  if (size < 0) return error(Code::kExhausted, "no memory is left for a command to Redis");
  const std::unique_ptr<char, void (*)(char*)> freed(formatted, [](char* text) { redisFreeCommand(text); });
  out.append(formatted, static_cast<size_t>(size));
  return {};
}

int milliseconds_to(Clock::time_point until) {
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, std::numeric_limits<int>::max()));
}

Error gone(const char* what) { return error(Code::kUnavailable, "{}", what); }
Error socket_error() { return gone(std::strerror(errno)); }

}  // namespace

void RedisConnection::Free::operator()(redisContext* context) const { redisFree(context); }

RedisConnection::RedisConnection(redisContext* context) : context_(context), buffer_(kReadAtOnce) {}

RedisConnection::~RedisConnection() = default;

Result<std::unique_ptr<RedisConnection>> RedisConnection::open(const RedisAddress& address, milliseconds patience) {
  const timeval limit{patience.count() / 1000, patience.count() % 1000 * 1000};
  std::unique_ptr<redisContext, Free> context(address.host.empty()
                                                  ? redisConnectUnixWithTimeout(address.socket.c_str(), limit)
                                                  : redisConnectWithTimeout(address.host.c_str(), address.port, limit));
  if (!context) return gone("no memory is left for a connection");
  if (context->err != 0) return error(Code::kUnavailable, "{}", context->errstr);
  const int flags = ::fcntl(context->fd, F_GETFL);
  if (flags < 0 || ::fcntl(context->fd, F_SETFL, flags | O_NONBLOCK) != 0) return socket_error();
  return std::unique_ptr<RedisConnection>(new RedisConnection(context.release()));
}

Status RedisConnection::send(Exchange& now) {
  const ssize_t n = ::send(context_->fd, now.out.data(), now.out.size(), MSG_NOSIGNAL);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? Status() : Status(socket_error());
  now.out.remove_prefix(static_cast<size_t>(n));
  now.sent += n;
  return {};
}

// What has come, as far as it is whole replies.
Status RedisConnection::receive(Exchange& now) {
  const ssize_t n = ::recv(context_->fd, buffer_.data(), buffer_.size(), 0);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? Status() : Status(socket_error());
  if (n == 0) return gone("it closed the connection");
  now.received += n;
  if (now.received > now.most_bytes) return error(Code::kCorrupt, "it sends more than was asked for");
  KVILT_TRY(parser_.feed({buffer_.data(), static_cast<size_t>(n)}));
  while (now.in.size() < now.replies) {
    KVILT_ASSIGN(std::optional<RedisReply> reply, parser_.next());
    if (!reply) return {};
    now.in.push_back(*std::move(reply));
  }
  return {};
}

// Sends and receives at once: neither side waits for the other to read.
Status RedisConnection::exchange(Exchange& now, milliseconds patience) {
  const auto start = Clock::now();
  while (!now.done()) {
    const auto until = start + patience + milliseconds((now.sent + now.received) / kBytesPerMillisecond);
    const int left = milliseconds_to(until);
    pollfd watched{context_->fd, static_cast<short>(now.out.empty() ? POLLIN : POLLIN | POLLOUT), 0};
    const int ready = left > 0 ? ::poll(&watched, 1, left) : 0;
    if (ready == 0) return gone("it does not answer in time");
    if (ready < 0 && errno != EINTR) return socket_error();
    if (ready < 0) continue;
    if ((watched.revents & POLLOUT) != 0) KVILT_TRY(send(now));
    if ((watched.revents & (POLLIN | POLLERR | POLLHUP)) != 0) KVILT_TRY(receive(now));
  }
  return {};
}

Result<std::vector<RedisReply>> RedisConnection::ask(std::span<const RedisCommand> commands, milliseconds patience,
                                                     int64_t most_bytes) {
  try {
    std::string out;
    for (const RedisCommand& command : commands) KVILT_TRY(add(command, out));
    Exchange now{.out = out, .replies = commands.size(), .most_bytes = most_bytes, .in = {}};
    KVILT_TRY(exchange(now, patience));
    return std::move(now.in);
  } catch (const std::bad_alloc&) {
    return error(Code::kExhausted, "no memory is left to talk to Redis");
  }
}

}  // namespace kvilt
