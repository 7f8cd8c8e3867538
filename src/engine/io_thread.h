// engine/io_thread.h: one thread that waits for disks, so that no other has to.
// Role:       runs jobs one by one: reads, which somebody waits for, before writes, which nobody does. Between them,
//             where it is due, what is to be done again and again; however long that takes, a write that waits runs
//             before it does again.
// Invariants: what queued writes hold in memory is bounded, but for one that is larger than the bound by itself. A job
//             in which memory ends (std::bad_alloc) ends there, and the next one runs; what somebody waits for is the
//             job's own affair. Jobs throw nothing else.
// Threads:    all functions from one thread; jobs run on the thread that is inside.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <thread>

#include "base/mutex.h"

namespace kvilt {

class IoThread {
 public:
  using Job = std::function<void()>;
  // most_bytes: of queued writes.
  explicit IoThread(int64_t most_bytes);
  ~IoThread() { finish(); }

  // Runs the job again and again until the end, so long after it ended, though not before reads.
  void every(std::chrono::milliseconds pause, Job job);
  void read(Job job);
  bool has_room(int64_t bytes) const;
  void wait_for_room(int64_t bytes);
  // done: runs behind the job, when its bytes are room again. REQUIRES: has_room(bytes)
  void write(Job job, int64_t bytes, Job done);
  int64_t drop_writes();  // those that have not begun; their bytes
  // Returns when all jobs are done; no more may come.
  void finish();

 private:
  struct Write {
    Job job;
    int64_t bytes = 0;
    Job done;
  };
  struct Regular {
    Job job;
    std::chrono::milliseconds pause;
  };
  void run();
  static void run(const Job& job);
  bool fits(int64_t bytes) const KVILT_REQUIRES(mutex_) { return bytes_ == 0 || bytes_ + bytes <= most_bytes_; }

  const int64_t most_bytes_;
  mutable Mutex mutex_;
  Condition changed_;
  std::deque<Job> reads_ KVILT_GUARDED_BY(mutex_);
  std::deque<Write> writes_ KVILT_GUARDED_BY(mutex_);
  int64_t bytes_ KVILT_GUARDED_BY(mutex_) = 0;  // of writes that wait or run
  std::optional<Regular> regular_ KVILT_GUARDED_BY(mutex_);
  bool finish_ KVILT_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last
};

}  // namespace kvilt
