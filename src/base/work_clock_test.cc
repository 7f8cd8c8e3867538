#include "base/work_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace kvilt {
namespace {

TEST(WorkLimit, WaitingIsNoWork) {
  WorkLimit limit(.05);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(limit.passed());
  EXPECT_LT(limit.seconds(), .05);
}

TEST(WorkLimit, WorkIs) {
  WorkLimit limit(.02), longer(1e6);
  while (!limit.passed()) {
  }
  EXPECT_GT(limit.seconds(), .02);
  EXPECT_TRUE(limit.passed()) << "for good";
  EXPECT_FALSE(longer.passed());
}

TEST(WorkLimit, OthersWorkIsTheirs) {
  WorkLimit own(.02);
  std::thread([] {
    WorkLimit theirs(.03);
    while (!theirs.passed()) {
    }
  }).join();
  EXPECT_FALSE(own.passed());
}

TEST(WorkLimit, NoTimeIsOverAtOnce) {
  WorkLimit none(0);
  while (none.seconds() == 0) {
  }
  EXPECT_TRUE(none.passed());
}

// Clocks that a test moves.
struct FakeClocks {
  static inline int64_t now = 0, worked = 0;
  static inline int asked = 0;
  static int64_t clock() { return now; }
  static int64_t own() {
    ++asked;
    return worked;
  }
  static void work(int64_t ns) {
    now += ns;
    worked += ns;
  }
  static void wait(int64_t ns) { now += ns; }
};
using FakeLimit = WorkLimitBy<FakeClocks>;

// Seconds that `times` steps of `step` are counted for.
template <class Step>
double counted(int times, Step step) {
  FakeClocks::wait(1'000'000'000);  // whatever another test has asked is long ago
  FakeClocks::asked = 0;
  double sum = 0;
  for (int i = 0; i < times; ++i) {
    FakeLimit limit(.25);
    step();
    sum += limit.seconds();
    FakeClocks::work(500);  // between two
  }
  return sum;
}

TEST(WorkLimit, ShortStepsDoNotAskForTheThreadsTime) {
  EXPECT_NEAR(counted(1000, [] { FakeClocks::work(1'000); }), 1e-3, 1e-12);
  EXPECT_LE(FakeClocks::asked, 1000 * 1'500 / FakeLimit::kFresh + 1) << "once in a hundred us";
  EXPECT_NEAR(counted(1000, [] { FakeClocks::work(FakeLimit::kShort); }), 1000 * FakeLimit::kShort * 1e-9, 1e-12);
  EXPECT_GE(FakeClocks::asked, 1000) << "power: long ones do";
}

// As when others take the core within a step.
TEST(WorkLimit, WaitsWithinStepsDoNotAddUp) {
  for (const int64_t wait : {FakeLimit::kShort, FakeLimit::kFresh / 2, FakeLimit::kFresh, int64_t{900'000}}) {
    const double sum = counted(1000, [&] {
      FakeClocks::work(300);
      FakeClocks::wait(wait);
      FakeClocks::work(700);
    });
    EXPECT_NEAR(sum, 1e-3, 1e-12) << wait;
  }
}

// A wait before a step is taken for work before it: it hides so much of the step, up to a bound.
TEST(WorkLimit, WaitsBetweenStepsHideLittle) {
  for (const int64_t wait : {FakeLimit::kFresh / 2, FakeLimit::kFresh, 10 * FakeLimit::kFresh}) {
    for (const int64_t work : {FakeLimit::kShort, 20 * FakeLimit::kFresh}) {
      FakeLimit before(.25);
      FakeClocks::work(FakeLimit::kShort);
      EXPECT_GT(before.seconds(), 0);
      FakeClocks::wait(wait);
      FakeLimit limit(.25);
      FakeClocks::work(work);
      EXPECT_LE(limit.seconds(), static_cast<double>(work) * 1e-9);
      EXPECT_GE(limit.seconds(), static_cast<double>(work - FakeLimit::kFresh) * 1e-9);
    }
  }
}

TEST(WorkLimit, AShortLimitBeginsExactly) {
  FakeClocks::wait(1'000'000'000);
  const FakeLimit before(.25);  // asks
  FakeClocks::wait(FakeLimit::kFresh / 2);
  FakeLimit limit(1e-4);
  FakeClocks::work(99'900);
  EXPECT_FALSE(limit.passed());
  FakeClocks::work(200);
  EXPECT_TRUE(limit.passed());
}

}  // namespace
}  // namespace kvilt
