// base/work_clock.h: bounds on work that other work on the machine cannot use up.
// Idea:    a thread's own time: what it waits, and what others have of its core, does not count. So a bound means the
//          same on a busy machine.
// Threads: what begins on one thread is asked there.
// Cost:    the thread's own time is a system call (400 ns), the clock 30 ns, a coarse one 5 ns.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>

namespace kvilt {

inline int64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

class WorkLimit {
 public:
  explicit WorkLimit(double seconds)
      : begin_(clock_ns(CLOCK_THREAD_CPUTIME_ID)),
        most_(static_cast<int64_t>(std::min(seconds, 1e9) * 1e9)),
        look_at_(clock_ns(CLOCK_MONOTONIC) + most_) {}

  // Whether the thread has worked for longer. No thread works for longer than the clock goes on, so its own time is
  // asked for only when that much has gone by.
  bool passed() {
    const int64_t now = clock_ns(CLOCK_MONOTONIC);
    if (now <= look_at_) return false;
    const int64_t left = most_ - worked();
    look_at_ = now + left;
    return left < 0;
  }
  double seconds() const { return static_cast<double>(worked()) * 1e-9; }  // that it has worked

 private:
  int64_t worked() const { return clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin_; }

  const int64_t begin_, most_;
  int64_t look_at_;
};

}  // namespace kvilt
