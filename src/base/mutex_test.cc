#include "base/mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace kvilt {
namespace {

using std::chrono::milliseconds;

struct Shared {
  Mutex mutex;
  Condition changed;
  int count KVILT_GUARDED_BY(mutex) = 0;
};

TEST(Mutex, OneThreadAtATime) {
  Shared shared;
  const auto add = [&] {
    for (int i = 0; i < 20000; ++i) {
      MutexLock lock(shared.mutex);
      ++shared.count;
    }
  };
  std::thread other(add);
  add();
  other.join();
  MutexLock lock(shared.mutex);
  EXPECT_EQ(shared.count, 40000);
}

TEST(Mutex, AWaitEndsWhenItsPredicateHolds) {
  Shared shared;
  std::thread other([&] {
    MutexLock lock(shared.mutex);
    ++shared.count;
    shared.changed.notify_all();
  });
  {
    MutexLock lock(shared.mutex);
    const auto counted = [&]() KVILT_REQUIRES(shared.mutex) { return shared.count == 1; };
    shared.changed.wait(lock, counted);
    EXPECT_TRUE(shared.changed.wait_for(lock, milliseconds(0), counted));
    EXPECT_FALSE(shared.changed.wait_for(lock, milliseconds(1), [] { return false; })) << "power: a wait can end early";
  }
  other.join();
}

TEST(Mutex, ALockLetsGoInBetween) {
  Shared shared;
  MutexLock lock(shared.mutex);
  lock.unlock();
  std::thread([&] {
    MutexLock inner(shared.mutex);
    shared.count = 1;
  }).join();
  lock.lock();
  EXPECT_EQ(shared.count, 1);
}

}  // namespace
}  // namespace kvilt
