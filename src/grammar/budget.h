// grammar/budget.h: how long and how large the work on a grammar may become on this thread.
// Idea:       xgrammar knows no limits of time. Two hooks stand in its loops (xgrammar_hooks.h); while a Budget lives on
//             their thread they count, look at the clock now and then, and throw OverBudget where it is used up. The time
//             is the thread's own: by the clock a busy machine would refuse what is sound.
// Invariants: outside of a Budget the hooks do nothing. OverBudget never leaves src/grammar.
// Threads:    each has its own.
// Cost:       an addition a call; the clock every 1,024.
#pragma once

#include <cstdint>
#include <exception>

#include "base/work_clock.h"

namespace kvilt {

struct OverBudget : std::exception {
  enum class What { kTime, kSize };
  explicit OverBudget(What what) : what_ran_out(what) {}
  const char* what() const noexcept override { return "the work on a grammar is over its budget"; }
  What what_ran_out;
};

class Budget {
 public:
  // seconds: that the thread may work. size: states, edges and masks that may come into being.
  Budget(double seconds, int64_t size);
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  void grow();
  void work();
  double seconds() const { return time_.seconds(); }  // that the thread has worked so far

 private:
  WorkLimit time_;
  int64_t left_;
  uint32_t calls_ = 0;
  Budget* const outer_;
};

}  // namespace kvilt
