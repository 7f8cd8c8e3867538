// engine/side_thread.h: one thread that does beforehand what somebody needs soon.
// Idea:       the mask of a constrained answer's next token is known before the forward pass that gives its logits, and
//             is filled beside it. Who needs it takes it back: what has not begun by then he does himself, so nobody waits
//             for what others have asked for. A machine with a spare core hides the work; without one it takes from the
//             pass what it saves behind it (docs/results/constrained.md).
// Invariants: a key has one job at a time. Behind take_back() its job is over, or never runs. Without memory, or without
//             a thread, nothing is done beforehand.
// Threads:    take_back() from any, all else from one. Jobs run on the thread that is inside. It starts with this object,
//             on the cores that its maker may run on; the engine thread may be pinned to one later. When the maker has
//             it, it waits for work: nothing of its start happens beside a decode step.
// Cost:       a wake-up of that thread each time that it was without work.
#pragma once

#include <deque>
#include <functional>
#include <latch>
#include <thread>

#include "base/mutex.h"

namespace kvilt {

class SideThread {
 public:
  using Job = std::function<void()>;  // throws nothing

  SideThread();
  ~SideThread();  // as drop(), and waits for what has begun

  // REQUIRES: the key has no job that waits or runs.
  void begin(const void* key, Job job);
  // Waits for the key's job if it has begun, else drops it. Nothing if it has none.
  void take_back(const void* key);
  void drop();  // all that has not begun

 private:
  struct Waiting {
    const void* key;
    Job job;
  };
  void run();

  Mutex mutex_;
  Condition changed_;  // work, or the end
  Condition over_;     // a job is
  std::deque<Waiting> waiting_ KVILT_GUARDED_BY(mutex_);
  const void* running_ KVILT_GUARDED_BY(mutex_) = nullptr;
  bool stop_ KVILT_GUARDED_BY(mutex_) = false;
  std::latch waits_{1};  // until the thread has had its first lock
  std::thread thread_;   // last
};

}  // namespace kvilt
