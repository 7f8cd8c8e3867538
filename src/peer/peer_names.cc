#include "peer/peer_names.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/open_file.h"

namespace kvilt {
namespace {

// Of who asks and of who waits; the last of the two ends it.
struct Lookup {
  PeerAddress address;
  PeerResolver resolver;
  OpenFile done;  // an eventfd: `found` is there
  std::optional<Result<PeerAddresses>> found;
};

void run_lookup(Lookup& lookup) {
  try {
    lookup.found.emplace(lookup.resolver(lookup.address));
  } catch (const std::bad_alloc&) {
    lookup.found.emplace(Error{Code::kExhausted, "no memory is left to look up a name"});
  }
  const uint64_t one = 1;
  while (::write(lookup.done.fd(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

}  // namespace

Result<PeerAddresses> addresses_of(const PeerAddress& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (failed != 0) return error(Code::kInvalidArgument, "{}: {}", address.shown(), ::gai_strerror(failed));
  return PeerAddresses(found, &::freeaddrinfo);
}

Result<PeerAddresses> addresses_unless(int cancel, const PeerAddress& address, PeerResolver resolver) {
  if (auto digits = addresses_of(address, AI_NUMERICHOST); digits.ok()) return digits;
  const auto lookup = std::make_shared<Lookup>();
  lookup->address = address;
  lookup->resolver = std::move(resolver);
  lookup->done = OpenFile(::eventfd(0, EFD_CLOEXEC));
  if (lookup->done.fd() < 0) return error(Code::kExhausted, "no file is left to look up a name");
  try {
    std::thread([lookup] { run_lookup(*lookup); }).detach();
  } catch (const std::system_error&) {
    return error(Code::kExhausted, "the system refused a thread to look up a name");
  }
  for (;;) {
    pollfd watched[2] = {{lookup->done.fd(), POLLIN, 0}, {cancel, POLLIN, 0}};
    if (::poll(watched, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return system_error(address.shown());
    }
    if (watched[1].revents != 0) return error(Code::kUnavailable, "it is no longer wanted");
    uint64_t told = 0;  // reading it is what makes `found` ours
    if (watched[0].revents == 0 || ::read(lookup->done.fd(), &told, sizeof told) != ssize_t{sizeof told}) continue;
    if (!lookup->found->ok()) return error(Code::kUnavailable, "{}", lookup->found->error().message);
    return std::move(*lookup->found).value();
  }
}

}  // namespace kvilt
