#include "peer/peer_link.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <future>

#include "peer/peer_names.h"

namespace kvilt {
namespace {

// A port of this machine that lets connections wait: its queue is full, and nobody takes any.
struct FullPort {
  PeerListener listener = PeerListener::open({"127.0.0.1", 0}).value();
  std::vector<PeerSocket> waiting;
  explicit FullPort(int queue) {
    EXPECT_EQ(::listen(listener.fd(), queue), 0);
    for (;;) {
      auto one = PeerSocket::connect({"127.0.0.1", listener.port()}, std::chrono::milliseconds(200));
      if (!one.ok()) return;
      waiting.push_back(std::move(one).value());
    }
  }
};

// Where it waited for the connection this would take an hour.
TEST(PeerLink, ItsEndWaitsForNoConnectionThatIsBeingMade) {
  const FullPort full(0);
  PeerLink link({{"127.0.0.1", full.listener.port()}, HashSecret::fixed(1), {}, std::chrono::hours(1)});
  const auto ignore = [](const auto&...) {};
  ASSERT_TRUE(link.start({.rows = ignore, .part = ignore, .end = ignore, .lost = ignore, .changed = ignore}).ok());
  link.finish();
  EXPECT_FALSE(link.ready());
  EXPECT_EQ(link.failures(), 0u) << "nothing was wrong with the peer";
}

TEST(PeerNames, AWaitForTheResolverCanBeEnded) {
  const OpenFile ends(::eventfd(0, EFD_CLOEXEC));
  const PeerAddress address{"prefill.example", 1};
  const auto answers = addresses_unless(ends.fd(), address, [](const auto&) {
    return addresses_of({"127.0.0.1", 1}, 0);
  });
  ASSERT_TRUE(answers.ok()) << "power";
  EXPECT_EQ((*answers)->ai_family, AF_INET);
  const auto never = [](const auto&) -> Result<PeerAddresses> { return Error{Code::kInvalidArgument, "no such name"}; };
  EXPECT_EQ(addresses_unless(ends.fd(), address, never).error().message, "no such name");
  std::promise<void> go_on;
  const auto hangs = [held = go_on.get_future().share()](const auto&) {
    held.wait();
    return addresses_of({"127.0.0.1", 1}, 0);
  };
  const uint64_t one = 1;
  ASSERT_EQ(::write(ends.fd(), &one, sizeof one), ssize_t{sizeof one});
  EXPECT_EQ(addresses_unless(ends.fd(), address, hangs).error().code, Code::kUnavailable);
  go_on.set_value();
}

}  // namespace
}  // namespace kvilt
