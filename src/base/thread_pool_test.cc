#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <new>
#include <numeric>

namespace kvilt {
namespace {

TEST(ThreadPool, RunsEveryIndexOnceOnValidWorkers) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 2000; ++round) {
      const int64_t count = round % 17;
      std::vector<int> hits(static_cast<size_t>(count), 0);
      std::atomic<bool> valid{true};
      pool.parallel_for(count, [&](int64_t i, int worker) {
        ++hits[i];
        if (worker < 0 || worker >= threads) valid = false;
      });
      EXPECT_TRUE(valid);
      EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), 0), count);
    }
  }
}

TEST(ThreadPool, SplitRunsEveryIndexOnceAndSharesInOrder) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    const std::vector<char> memory(100000);
    for (int round = 0; round < 2000; ++round) {
      const int64_t count = round % 17;
      std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
      std::vector<std::vector<int64_t>> order(static_cast<size_t>(threads));
      if (round % 3 == 0) pool.read_ahead(threads - 1, memory.data(), static_cast<int64_t>(memory.size()));
      pool.parallel_split(count, [&](int64_t i, int worker) {
        ++hits[i];
        order[worker].push_back(i);
      });
      for (const auto& hit : hits) EXPECT_EQ(hit, 1);
      for (int w = 0; w < threads; ++w) {  // indices of a worker's own share rise; it may have taken others' as well
        int64_t next = pool.share(count, w);
        const int64_t end = pool.share(count, w + 1);
        for (const int64_t i : order[w]) {
          if (i < pool.share(count, w) || i >= end) continue;
          EXPECT_EQ(i, next++);
        }
      }
    }
  }
}

TEST(ThreadPool, WhatAWorkerThrowsReachesTheCaller) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 200; ++round) {
      for (const bool split : {false, true}) {
        const int64_t bad = round % 32;
        const auto body = [&](int64_t i, int) {
          if (i == bad) throw std::bad_alloc();
        };
        EXPECT_THROW(split ? pool.parallel_split(32, body) : pool.parallel_for(32, body), std::bad_alloc);
        EXPECT_THROW(pool.parallel_for(32, [](int64_t, int) { throw std::bad_alloc(); }), std::bad_alloc);
        std::vector<std::atomic<int>> hits(32);  // the next loop is as always
        const auto count = [&](int64_t i, int) { ++hits[i]; };
        split ? pool.parallel_split(32, count) : pool.parallel_for(32, count);
        for (const auto& hit : hits) EXPECT_EQ(hit, 1);
      }
    }
  }
}

TEST(ThreadPool, SplitTakesFromAWorkerThatIsSlow) {
  ThreadPool pool(2);
  std::atomic<int> done{0};
  std::atomic<bool> stuck{false};
  // The worker at index 0 waits for all other indices: that ends only if the rest of its share is taken from it.
  pool.parallel_split(64, [&](int64_t i, int) {
    if (i != 0) {
      ++done;
      return;
    }
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (done < 63 && !stuck) {
      std::this_thread::yield();
      if (std::chrono::steady_clock::now() > until) stuck = true;
    }
  });
  EXPECT_FALSE(stuck);
  EXPECT_EQ(done, 63);
}

TEST(ThreadPool, WakesAfterSleeping) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> sum{0};
    pool.parallel_for(100, [&](int64_t i, int) { sum += static_cast<int>(i); });
    EXPECT_EQ(sum, 4950);
  }
}

// Every index waits until all have begun, so each needs a thread of its own: workers that sleep, then, on odd rounds, a
// caller that sleeps until the last of them is done.
TEST(ThreadPool, WakesAllThatSleep) {
  constexpr int kThreads = 3;
  ThreadPool pool(kThreads);
  for (int round = 0; round < 20; ++round) {
    if (round % 4 != 0) std::this_thread::sleep_for(std::chrono::microseconds(100 * (round % 8)));
    std::atomic<int> begun{0};
    std::atomic<bool> alone{false};
    pool.parallel_for(kThreads, [&](int64_t, int worker) {
      ++begun;
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (begun < kThreads) {
        if (std::chrono::steady_clock::now() < until) continue;
        alone = true;
        return;
      }
      if (round % 2 != 0 && worker > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    ASSERT_FALSE(alone) << "round " << round;
  }
}

}  // namespace
}  // namespace kvilt
