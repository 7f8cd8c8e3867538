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

}  // namespace
}  // namespace kvilt
