// What runs before what; who hears that a write is done finds its memory free and its room in the queue.
#include "engine/io_thread.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvilt {
namespace {

TEST(IoThread, WhatIsDoneLeavesRoom) {
  constexpr int64_t kMost = 100;
  IoThread io(kMost);
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> left = held;
  bool ran = false, room_within = true, room_behind = false, freed = false;
  io.write([&, held = std::move(held)] { ran = *held == 1, room_within = io.has_room(kMost); }, kMost,
           [&] { room_behind = io.has_room(kMost), freed = left.expired(); });
  io.finish();
  EXPECT_TRUE(ran);
  EXPECT_FALSE(room_within) << "power";
  EXPECT_TRUE(room_behind);
  EXPECT_TRUE(freed);
}

TEST(IoThread, AJobInWhichMemoryEndsEndsAlone) {
  IoThread io(100);
  bool ran = false, done = false;
  io.read([] { throw std::bad_alloc(); });
  io.write([] { throw std::bad_alloc(); }, 100, [&] { done = io.has_room(100); });
  io.write([&] { ran = true; }, 0, [] { throw std::bad_alloc(); });
  io.finish();
  EXPECT_TRUE(ran);
  EXPECT_TRUE(done) << "its bytes are room again";
}

// A regular job that is always due again, as one that takes longer than its pause was. Reads still come before all.
TEST(IoThread, AWriteRunsBetweenTwoRegularJobs) {
  IoThread io(100);
  std::promise<void> began, go_on, all;
  std::string order;  // the I/O thread's
  bool told = false;
  const auto done = [&] {
    if (!std::exchange(told, true)) all.set_value();
  };
  io.every(std::chrono::milliseconds(0), [&] {
    if (order.empty()) began.set_value(), go_on.get_future().wait();
    order += 'n';
    if (order.size() > 100) done();
  });
  began.get_future().wait();
  for (const char name : {'a', 'b', 'c'}) {
    io.write(
        [&, name] {
          order += name;
          if (name == 'a') io.read([&] { order += 's'; });
        },
        1, [&, name] { name == 'c' ? done() : void(); });
  }
  io.read([&] { order += 'r'; });
  go_on.set_value();
  all.get_future().wait();
  io.finish();
  EXPECT_EQ(order.substr(0, 8), "nrasnbnc");
}

TEST(IoThread, ThePauseIsBehindTheRegularJob) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPause{10};
  IoThread io(100);
  std::promise<void> all;
  std::vector<Clock::time_point> begun, ended;
  io.every(kPause, [&] {
    begun.push_back(Clock::now());
    std::this_thread::sleep_for(kPause);
    ended.push_back(Clock::now());
    if (ended.size() == 3) all.set_value();
  });
  all.get_future().wait();
  io.finish();
  for (size_t i = 1; i < 3; ++i) EXPECT_GE(begun[i] - ended[i - 1], kPause);
}

}  // namespace
}  // namespace kvilt
