// What has begun is waited for, what has not is dropped, and keys do not wait for one another.
#include "engine/side_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace kvilt {
namespace {

// A job that stands until it is let go.
struct Standing {
  std::promise<void> began, go_on;
  std::atomic<bool> over{false};
  SideThread::Job job() {
    return [this] {
      began.set_value();
      go_on.get_future().wait();
      over = true;
    };
  }
};

TEST(SideThread, RunsJobsOnItsOwnThreadInTurn) {
  SideThread side;
  std::promise<void> all;
  std::vector<int> order;  // its thread's
  const int keys[3] = {};
  std::thread::id where;
  for (int i = 0; i < 3; ++i) {
    side.begin(&keys[i], [&, i] {
      order.push_back(i);
      where = std::this_thread::get_id();
      if (i == 2) all.set_value();
    });
  }
  all.get_future().wait();
  for (const int& key : keys) side.take_back(&key);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
  EXPECT_NE(where, std::this_thread::get_id());
}

TEST(SideThread, WhatHasNotBegunIsDropped) {
  SideThread side;
  Standing first;
  const int keys[3] = {};
  bool second = false, third = false;
  side.begin(&keys[0], first.job());
  first.began.get_future().wait();
  side.begin(&keys[1], [&] { second = true; });
  side.begin(&keys[2], [&] { third = true; });
  side.take_back(&keys[1]);  // without waiting for the first
  EXPECT_FALSE(first.over);
  EXPECT_FALSE(second);
  second = true;  // the key is ours
  first.go_on.set_value();
  side.take_back(&keys[0]);
  EXPECT_TRUE(first.over);
  std::promise<void> last;
  side.begin(&keys[1], [&] { last.set_value(); });  // the key may have another one
  last.get_future().wait();
  side.take_back(&keys[1]);
  EXPECT_TRUE(third) << "power: what nobody took back ran";
}

TEST(SideThread, WhatHasBegunIsWaitedFor) {
  SideThread side;
  Standing one;
  const int key = 0;
  side.begin(&key, one.job());
  one.began.get_future().wait();
  std::atomic<bool> back{false};
  std::promise<void> there;
  std::thread who([&] {
    there.set_value();
    side.take_back(&key);
    EXPECT_TRUE(one.over);
    back = true;
  });
  there.get_future().wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // who does not wait is through by then, mostly
  EXPECT_FALSE(back);
  one.go_on.set_value();
  who.join();
  EXPECT_TRUE(back);
  side.take_back(&key);  // it has none
}

TEST(SideThread, TheEndDropsWhatWaitsAndWaitsForWhatRuns) {
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> left = held;
  Standing one;
  const int keys[2] = {};
  auto side = std::make_unique<SideThread>();
  side->begin(&keys[0], one.job());
  one.began.get_future().wait();
  side->begin(&keys[1], [held = std::move(held)] {});
  EXPECT_FALSE(left.expired()) << "power";
  std::thread end([&] { side.reset(); });
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!left.expired() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_TRUE(left.expired());
  EXPECT_FALSE(one.over);
  one.go_on.set_value();
  end.join();
  EXPECT_TRUE(one.over);
}

}  // namespace
}  // namespace kvilt
