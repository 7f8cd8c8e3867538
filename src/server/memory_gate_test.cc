// Who waits, who enters, who gives up.
#include "server/memory_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace kvilt::server {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr auto kLong = std::chrono::milliseconds(60000), kShort = std::chrono::milliseconds(1);
const auto never = [] { return false; };

TEST(MemoryGate, TheSumIsBounded) {
  MemoryGate gate(4 * kMiB);
  auto first = gate.enter(3 * kMiB, kLong, never);
  ASSERT_TRUE(first);
  EXPECT_FALSE(gate.enter(2 * kMiB, kShort, never)) << "5 of 4 MiB";
  EXPECT_TRUE(gate.enter(kMiB, kShort, never)) << "power check: what fits goes in";
  EXPECT_TRUE(gate.enter(MemoryGate::kSmall, kShort, never));
  first->leave();
  first->leave();
  EXPECT_TRUE(gate.enter(100 * kMiB, kShort, never)) << "one that is larger than the limit goes in alone";
  auto second = gate.enter(4 * kMiB, kShort, never);
  ASSERT_TRUE(second) << "what left has left";
  EXPECT_FALSE(gate.enter(kMiB, kShort, never));
}

TEST(MemoryGate, WhoWaitsGoesInWhenThereIsRoom) {
  MemoryGate gate(kMiB);
  std::atomic<int> inside{0}, most{0}, done{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        const auto pass = gate.enter(kMiB / 2 + 1, kLong, never);
        if (!pass) continue;
        most = std::max(most.load(), ++inside);
        std::this_thread::yield();
        --inside;
        ++done;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, 160);
  EXPECT_EQ(most, 1);
}

TEST(MemoryGate, ALargeOneIsNotPassedByThoseAfterIt) {
  MemoryGate gate(4 * kMiB);
  auto held = gate.enter(2 * kMiB, kLong, never);
  std::atomic<bool> asked{false};
  std::atomic<bool> large_in{false};
  std::thread large([&] {
    const auto pass = gate.enter(4 * kMiB, kLong, [&] {
      asked = true;
      return false;
    });
    large_in = pass.has_value();
  });
  while (!asked) std::this_thread::yield();
  EXPECT_FALSE(gate.enter(kMiB, kShort, never)) << "it would fit, but another was first";
  held->leave();
  large.join();
  EXPECT_TRUE(large_in);
  EXPECT_TRUE(gate.enter(kMiB, kShort, never));
}

TEST(MemoryGate, WhoGrowsCountsWhatItHas) {
  MemoryGate gate(4 * kMiB);
  auto alone = gate.enter(kMiB, kLong, never);
  ASSERT_TRUE(alone);
  EXPECT_TRUE(gate.grow(*alone, 4 * kMiB, kShort, never)) << "1 and 4 of 4 MiB: it is alone";
  EXPECT_FALSE(gate.enter(kMiB, kShort, never)) << "power: it has grown";
  alone->leave();
  auto one = gate.enter(2 * kMiB, kLong, never), other = gate.enter(kMiB, kLong, never);
  ASSERT_TRUE(one && other);
  EXPECT_FALSE(gate.grow(*one, 2 * kMiB, kShort, never)) << "4 and 1";
  EXPECT_TRUE(gate.grow(*one, kMiB, kShort, never)) << "3 and 1: it has what it had";
  EXPECT_FALSE(gate.enter(kMiB, kShort, never));
  one->leave();
  EXPECT_TRUE(gate.enter(3 * kMiB, kShort, never));
  auto small = gate.enter(kMiB / 1024, kShort, never);
  ASSERT_TRUE(small);
  EXPECT_TRUE(gate.grow(*small, 3 * kMiB, kShort, never));
  EXPECT_FALSE(gate.enter(kMiB, kShort, never)) << "power: what was too small to count has grown";
}

// Two who are inside and need more than is left wait for each other, were what they have not theirs to use.
TEST(MemoryGate, ThoseWhoGrowDoNotWaitForEachOther) {
  MemoryGate gate(4 * kMiB);
  std::atomic<int> inside{0}, grown{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      auto pass = gate.enter(2 * kMiB, kLong, never);
      ++inside;
      while (inside < 2) std::this_thread::yield();
      if (gate.grow(*pass, 2 * kMiB, kLong, never)) ++grown;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(grown, 2);
  EXPECT_TRUE(gate.enter(4 * kMiB, kShort, never)) << "all have left";
}

TEST(MemoryGate, WhoGrowsIsNotPassedByThoseWhoComeIn) {
  MemoryGate gate(4 * kMiB);
  auto held = gate.enter(kMiB, kLong, never), grows = gate.enter(kMiB, kLong, never);
  ASSERT_TRUE(held && grows);
  std::atomic<bool> asked{false}, grown{false};
  std::thread grower([&] {
    grown = gate.grow(*grows, 3 * kMiB, kLong, [&] {
      asked = true;
      return false;
    });
  });
  while (!asked) std::this_thread::yield();
  EXPECT_FALSE(gate.enter(kMiB, kShort, never)) << "it would fit";
  held->leave();
  grower.join();
  EXPECT_TRUE(grown);
  grows->leave();
  EXPECT_TRUE(gate.enter(kMiB, kShort, never)) << "power";
}

// A small body with a long thread has nothing inside: it waits as if it came in, and passes nobody.
TEST(MemoryGate, WhoHasNothingInsideStandsInLine) {
  MemoryGate gate(4 * kMiB);
  auto held = gate.enter(kMiB, kLong, never);
  std::atomic<bool> asked{false};
  std::thread large([&] {
    EXPECT_TRUE(gate.enter(4 * kMiB, kLong, [&] {
      asked = true;
      return false;
    }));
  });
  while (!asked) std::this_thread::yield();
  auto small = gate.enter(1, kShort, never);
  ASSERT_TRUE(small);
  EXPECT_FALSE(gate.grow(*small, kMiB, kShort, never)) << "it would fit beside the one that is inside";
  held->leave();
  large.join();
  EXPECT_TRUE(gate.grow(*small, kMiB, kShort, never)) << "power";
}

TEST(MemoryGate, WhoGivesUpLeavesTheLine) {
  MemoryGate gate(kMiB);
  auto held = gate.enter(kMiB, kLong, never);
  int asked = 0;
  EXPECT_FALSE(gate.enter(kMiB, kLong, [&] { return ++asked == 2; }));
  EXPECT_EQ(asked, 2);
  held->leave();
  EXPECT_TRUE(gate.enter(kMiB, kShort, never));
}

}  // namespace
}  // namespace kvilt::server
