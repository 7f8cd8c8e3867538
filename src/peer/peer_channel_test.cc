#include "peer/peer_channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <future>

namespace kvilt {
namespace {

using Bytes = std::vector<std::byte>;
using Made = Result<std::unique_ptr<PeerChannel>>;
using Side = PeerChannel::Side;

constexpr std::chrono::milliseconds kSoon{2000};

std::shared_ptr<const PeerSocket> socket_at(int fd) { return std::make_shared<const PeerSocket>(OpenFile(fd)); }

struct Ends {
  Ends() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0); }
  int fds[2];
};

struct Both {
  Made asks = Error{}, answers = Error{};
};
Both shake(const HashSecret& one, const HashSecret& two, Side second = Side::kAnswers) {
  const Ends ends;
  auto other =
      std::async(std::launch::async, [&] { return PeerChannel::open(socket_at(ends.fds[1]), second, two, kSoon); });
  Made first = PeerChannel::open(socket_at(ends.fds[0]), Side::kAsks, one, kSoon);
  if (!first.ok()) first = first.error();  // its socket is closed by now
  return {std::move(first), other.get()};
}

Bytes bytes(size_t size, int of) { return Bytes(size, static_cast<std::byte>(of)); }

TEST(PeerChannel, MessagesArriveInBothDirections) {
  const Both both = shake(HashSecret::fixed(1), HashSecret::fixed(1));
  ASSERT_TRUE(both.asks.ok() && both.answers.ok());
  PeerChannel &asks = **both.asks, &answers = **both.answers;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{5000}}) {
    ASSERT_TRUE(asks.send(bytes(size, 3)).ok());
    ASSERT_TRUE(answers.send(bytes(size, 4)).ok());
    EXPECT_EQ(*answers.receive(5000), bytes(size, 3));
    EXPECT_EQ(*asks.receive(5000), bytes(size, 4));
  }
  ASSERT_TRUE(asks.send(bytes(11, 1)).ok());
  const auto much = answers.receive(10);
  ASSERT_FALSE(much.ok()) << "more than was wanted";
  EXPECT_EQ(much.error().code, Code::kCorrupt);
}

TEST(PeerChannel, AnotherKeyOrTheSameRoleIsRefused) {
  const Both keys = shake(HashSecret::fixed(1), HashSecret::fixed(2));
  ASSERT_FALSE(keys.asks.ok());
  EXPECT_NE(keys.asks.error().message.find("another key"), std::string::npos);
  EXPECT_FALSE(keys.answers.ok());
  const Both roles = shake(HashSecret::fixed(1), HashSecret::fixed(1), Side::kAsks);
  ASSERT_FALSE(roles.asks.ok());
  EXPECT_NE(roles.asks.error().message.find("same role"), std::string::npos);
}

TEST(PeerChannel, WhateverSpeaksOtherwiseIsRefused) {
  std::string version("kviltpp\n", 8);
  version[5] = 'p';
  version += std::string("\x01\0\0\0\0\0\0\0", 8) + std::string(32, 'x');
  std::string zero("kviltpp\n", 8);
  zero += std::string("\x02\0\0\0\0\0\0\0", 8) + std::string(32, '\0');  // no point of the curve
  const std::pair<std::string, const char*> cases[] = {
      {"GET / HTTP/1.1\r\nHost: a.example\r\nAccept: */*\r\nA: b\r\n\r\n", "no server of a pair"},
      {version, "version 1"},
      {zero, "no point"},
      {"kvilt", "closed"},
  };
  for (const auto& [text, why] : cases) {
    const Ends ends;
    ASSERT_EQ(::send(ends.fds[1], text.data(), text.size(), 0), std::ssize(text));
    ::shutdown(ends.fds[1], SHUT_WR);
    const Made made = PeerChannel::open(socket_at(ends.fds[0]), Side::kAnswers, HashSecret::fixed(1), kSoon);
    ASSERT_FALSE(made.ok()) << why;
    EXPECT_NE(made.error().message.find(why), std::string::npos) << made.error().message;
    ::close(ends.fds[1]);
  }
}

TEST(PeerChannel, WhoSaysNothingIsNotWaitedForLong) {
  const Ends ends;
  const Made made =
      PeerChannel::open(socket_at(ends.fds[0]), Side::kAnswers, HashSecret::fixed(1), std::chrono::milliseconds(50));
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message.find("too slow"), std::string::npos);
  ::close(ends.fds[1]);
}

// Between the two, a third that may change what it passes on.
struct Between {
  Ends left, right;
  Both both;
  Between() {
    auto one = std::async(std::launch::async, [&] {
      return PeerChannel::open(socket_at(left.fds[0]), Side::kAsks, HashSecret::fixed(1), kSoon);
    });
    auto two = std::async(std::launch::async, [&] {
      return PeerChannel::open(socket_at(right.fds[0]), Side::kAnswers, HashSecret::fixed(1), kSoon);
    });
    pass(left, right, 48);       // a greeting
    pass(right, left, 48 + 32);  // a greeting and a proof
    pass(left, right, 32 + 24);  // a proof and the beginning of a stream
    pass(right, left, 24);
    both = {one.get(), two.get()};
  }
  ~Between() {
    ::close(left.fds[1]);
    ::close(right.fds[1]);
  }
  static Bytes take(const Ends& from, size_t size) {
    Bytes out(size);
    const PeerSocket socket{OpenFile(::dup(from.fds[1]))};
    EXPECT_TRUE(socket.receive(out, kSoon).ok());
    return out;
  }
  static void give(const Ends& to, const Bytes& bytes) {
    const PeerSocket socket{OpenFile(::dup(to.fds[1]))};
    EXPECT_TRUE(socket.send(bytes, kSoon).ok());
  }
  static void pass(const Ends& from, const Ends& to, size_t size) { give(to, take(from, size)); }
  // A sealed message of 100 bytes from the asking side.
  Bytes sealed(int of) {
    EXPECT_TRUE((*both.asks)->send(bytes(100, of)).ok());
    return take(left, 4 + 100 + 17);
  }
  Result<Bytes> received() { return (*both.answers)->receive(1000); }
};

TEST(PeerChannel, ChangedLostRepeatedAndTurnedMessagesAreNone) {
  {
    Between between;
    ASSERT_TRUE(between.both.asks.ok() && between.both.answers.ok());
    const Bytes first = between.sealed(1), second = between.sealed(2);
    const Bytes plain = bytes(100, 1);
    EXPECT_EQ(std::search(first.begin(), first.end(), plain.begin(), plain.begin() + 8), first.end()) << "it is sealed";
    between.give(between.right, first);
    EXPECT_EQ(*between.received(), plain) << "power: passed on as they are they arrive";
    between.give(between.right, first);
    EXPECT_EQ(between.received().error().code, Code::kCorrupt) << "repeated";
  }
  {
    Between between;
    between.sealed(1);
    between.give(between.right, between.sealed(2));
    EXPECT_EQ(between.received().error().code, Code::kCorrupt) << "one was left out";
  }
  {
    Between between;
    between.give(between.left, between.sealed(1));
    EXPECT_EQ((*between.both.asks)->receive(1000).error().code, Code::kCorrupt) << "sent back to who sent it";
  }
  for (const size_t at : {size_t{4}, size_t{50}, size_t{120}}) {
    Between between;
    Bytes changed = between.sealed(1);
    changed[at] ^= std::byte{1};
    between.give(between.right, changed);
    EXPECT_EQ(between.received().error().code, Code::kCorrupt) << at;
  }
}

TEST(PeerChannel, ALengthIsBoundedBeforeMemoryIsTaken) {
  for (const uint32_t size : {uint32_t{0}, uint32_t{16}, uint32_t{1018}, UINT32_MAX}) {
    Between between;
    Bytes length(4);
    std::memcpy(length.data(), &size, sizeof size);
    between.give(between.right, length);
    EXPECT_EQ(between.received().error().code, Code::kCorrupt) << size;
  }
  Between between;
  Bytes half = between.sealed(1);
  half.resize(60);
  between.give(between.right, half);
  ::shutdown(between.right.fds[1], SHUT_WR);
  EXPECT_EQ(between.received().error().code, Code::kUnavailable) << "the end is missing";
}

}  // namespace
}  // namespace kvilt
