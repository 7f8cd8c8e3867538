// Who hears that a write is done finds its memory free and its room in the queue.
#include "engine/io_thread.h"

#include <gtest/gtest.h>

#include <memory>

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

}  // namespace
}  // namespace kvilt
