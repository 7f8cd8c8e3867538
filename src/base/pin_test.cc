#include "base/pin.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>

namespace kvilt {
namespace {

int allowed_cores() {
  cpu_set_t allowed;
  return ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
}

TEST(Pin, EveryWorkerHasItsCore) {
  std::thread([] {  // on a thread of its own, so that this one is not pinned
    const int cores = allowed_cores();
    ThreadPool pool(cores);
    ASSERT_TRUE(pin_to_cores(pool));
    EXPECT_EQ(allowed_cores(), 1);
    std::atomic<int> free_ones{0};
    pool.parallel_for(100, [&](int64_t, int) { free_ones += allowed_cores() != 1; });
    EXPECT_EQ(free_ones, 0);
  })
      .join();
}

TEST(Pin, MoreThreadsThanCoresStayFree) {
  const int cores = allowed_cores();
  ThreadPool pool(cores + 1);
  EXPECT_FALSE(pin_to_cores(pool));
  EXPECT_EQ(allowed_cores(), cores);
}

}  // namespace
}  // namespace kvilt
