#include "peer/peer_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <thread>

namespace kvilt {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{3600000}, kAnswers{20000};
const PeerHello kHello{{1, 2, 3}, 64};

PeerServer::Options server_options() {
  return {.address = {"127.0.0.1", 0},
          .key = HashSecret::fixed(1),
          .hello = kHello,
          .most_tokens = 100,
          .patience = kLong,
          .idle = kLong};
}

std::unique_ptr<PeerServer> open_server(PeerServer::Options options) {
  const auto nothing = [](const auto&...) {};
  auto out =
      PeerServer::open(std::move(options), {.ask = nothing, .cancel = nothing, .drained = nothing, .lost = nothing});
  EXPECT_TRUE(out.ok());
  return std::move(out).value();
}

// From another address of this machine.
std::shared_ptr<const PeerSocket> connect_from(const char* address, int port) {
  OpenFile file(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{}, other{};
  own.sin_family = other.sin_family = AF_INET;
  other.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(::inet_pton(AF_INET, address, &own.sin_addr), 1);
  EXPECT_EQ(::inet_pton(AF_INET, "127.0.0.1", &other.sin_addr), 1);
  EXPECT_EQ(::bind(file.fd(), reinterpret_cast<sockaddr*>(&own), sizeof own), 0);
  EXPECT_EQ(::connect(file.fd(), reinterpret_cast<sockaddr*>(&other), sizeof other), 0);
  EXPECT_EQ(::fcntl(file.fd(), F_SETFL, O_NONBLOCK), 0);
  return std::make_shared<const PeerSocket>(std::move(file));
}

std::unique_ptr<PeerChannel> shake_hands(std::shared_ptr<const PeerSocket> socket) {
  auto out = PeerChannel::open(std::move(socket), PeerChannel::Side::kAsks, HashSecret::fixed(1), kAnswers);
  return out.ok() ? std::move(out).value() : nullptr;
}

// Whether it is answered as one of a pair.
bool greets(PeerChannel& channel) {
  return channel.send(bytes_of_message(kHello)).ok() && channel.receive(1000, kAnswers).ok();
}

std::unique_ptr<PeerChannel> open_peer(int port) {
  auto out = shake_hands(connect_from("127.0.0.1", port));
  return out && greets(*out) ? std::move(out) : nullptr;
}

bool closed(const PeerSocket& socket) {
  std::byte one;
  const Status got = socket.receive({&one, 1}, kAnswers);
  return !got.ok() && got.error().message.find("too slow") == std::string::npos;
}

TEST(PeerServer, AFloodOfStrangersKeepsNobodyOut) {
  const auto server = open_server(server_options());
  const auto early = connect_from("127.0.0.2", server->port());
  const auto before = open_peer(server->port());
  ASSERT_TRUE(before);
  std::vector<std::shared_ptr<const PeerSocket>> flood;
  for (int i = 0; i < 3 * PeerServer::kMostStrangers; ++i) flood.push_back(connect_from("127.0.0.1", server->port()));
  const auto late = open_peer(server->port());
  EXPECT_TRUE(late) << "a new one gets in, from the flood's own address too";
  EXPECT_TRUE(closed(*flood.front())) << "power: the oldest stranger went";
  const auto other = shake_hands(early);
  EXPECT_TRUE(other && greets(*other)) << "what another address has is not driven out";
  int tries = 0;  // they are counted a little after they were greeted
  while (server->counters().connections < 3 && ++tries < 1000) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(server->counters().connections, 3) << "nor who has the key";
}

TEST(PeerServer, TheOldestOfTheFullestAddressGoes) {
  EXPECT_EQ(stranger_to_go({"a"}), 0u);
  EXPECT_EQ(stranger_to_go({"a", "b", "c"}), 0u);
  EXPECT_EQ(stranger_to_go({"a", "b", "c", "b"}), 1u);
  EXPECT_EQ(stranger_to_go({"a", "b", "c", "b", "c", "c"}), 2u);
}

TEST(PeerServer, WhoHasTheKeyAndSaysNoHelloIsNotKept) {
  PeerServer::Options options = server_options();
  options.patience = milliseconds(300);
  const auto server = open_server(options);
  const auto socket = connect_from("127.0.0.1", server->port());
  ASSERT_TRUE(shake_hands(socket));
  EXPECT_TRUE(closed(*socket));
}

TEST(PeerServer, OnlyAnIdlePeerGivesItsPlace) {
  for (const bool idle : {false, true}) {
    PeerServer::Options options = server_options();
    if (idle) options.idle = milliseconds(0);
    const auto server = open_server(options);
    std::vector<std::unique_ptr<PeerChannel>> peers;
    for (int i = 0; i < PeerServer::kMostConnections; ++i) {
      peers.push_back(open_peer(server->port()));
      ASSERT_TRUE(peers.back()) << i;
    }
    EXPECT_EQ(open_peer(server->port()) != nullptr, idle);
    if (!idle) continue;
    const auto gone = peers.front()->receive(1000, kAnswers);
    EXPECT_TRUE(!gone.ok() && gone.error().message.find("too slow") == std::string::npos) << "for the new one";
  }
}

}  // namespace
}  // namespace kvilt
