// base/work_clock.h: bounds on work that other work on the machine cannot use up.
// Idea:    a thread's own time: what it waits, and what others have of its core, does not count. So a bound means the
//          same on a busy machine. That time is dear to ask for, and no thread works for longer than the clock goes on:
//          the clock is read, and the thread's own time only where the two may differ by much.
// Threads: what begins on one thread is asked there.
// Cost:    the thread's own time is a system call (400 to 800 ns), the clock 30 ns, a coarse one 5 ns. A WorkLimit that
//          begins and ends within 20 us reads the clock twice.
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

struct MachineClocks {
  static int64_t clock() { return clock_ns(CLOCK_MONOTONIC); }
  static int64_t own() { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }
};

// Clocks: MachineClocks, or a test's.
template <class Clocks>
class WorkLimitBy {
 public:
  explicit WorkLimitBy(double seconds)
      : most_(static_cast<int64_t>(std::min(seconds, 1e9) * 1e9)),
        clock_(Clocks::clock()),
        begin_(most_ < kExact ? asked(clock_) : at_most(clock_)),
        look_at_(clock_ + most_) {}

  // Whether the thread has worked for longer. No thread works for longer than the clock goes on, so its own time is
  // asked for only when that much has gone by.
  bool passed() {
    const int64_t now = Clocks::clock();
    if (now <= look_at_) return false;
    const int64_t left = most_ - (asked(now) - begin_);
    look_at_ = now + left;
    return left < 0;
  }

  // That it has worked. What took less than kShort is counted by the clock, so a wait within it counts as work.
  double seconds() const {
    const int64_t now = Clocks::clock(), gone = now - clock_;
    return static_cast<double>(gone < kShort ? gone : std::max<int64_t>(asked(now) - begin_, 0)) * 1e-9;
  }

  static constexpr int64_t kShort = 20'000;       // ns: a thread that asks once in so long loses a 25th of its time
  static constexpr int64_t kFresh = 100'000;      // ns by which a beginning may be off
  static constexpr int64_t kExact = 10 * kFresh;  // a shorter limit begins exactly

 private:
  // What was read together.
  struct Both {
    int64_t clock = INT64_MIN / 2, own = 0;
  };
  static Both& last() {
    static thread_local Both both;
    return both;
  }
  static int64_t asked(int64_t now) {
    last() = {now, Clocks::own()};
    return last().own;
  }
  // The thread's own time, or up to kFresh more: as if it had not waited since it was asked last. So what begins here
  // counts too little rather than too much.
  static int64_t at_most(int64_t now) {
    const Both& both = last();
    return now - both.clock > kFresh ? asked(now) : both.own + (now - both.clock);
  }

  const int64_t most_, clock_, begin_;
  int64_t look_at_;
};

using WorkLimit = WorkLimitBy<MachineClocks>;

}  // namespace kvilt
