#include "base/thread_pool.h"

#include <gtest/gtest.h>

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
        ++hits[static_cast<size_t>(i)];
        if (worker < 0 || worker >= threads) valid = false;
      });
      EXPECT_TRUE(valid);
      EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), 0), count);
    }
  }
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

}  // namespace
}  // namespace kvilt
