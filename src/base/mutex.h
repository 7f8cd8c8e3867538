// base/mutex.h: std::mutex, a lock and a condition variable with the annotations that let clang check who holds what.
//
// libstdc++'s own types carry none, so that clang would believe that nothing is ever locked. A predicate that reads
// guarded members says so: changed_.wait(lock, [this]() KVILT_REQUIRES(mutex_) { return stop_; }).
#pragma once

#include <condition_variable>
#include <mutex>

#include "base/thread_annotations.h"

namespace kvilt {

class KVILT_CAPABILITY("mutex") Mutex {
 public:
  void lock() KVILT_ACQUIRE() { mutex_.lock(); }
  void unlock() KVILT_RELEASE() { mutex_.unlock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex until the end of its scope; may let it go and take it again in between.
class KVILT_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) KVILT_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() KVILT_RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() KVILT_ACQUIRE() { lock_.lock(); }
  void unlock() KVILT_RELEASE() { lock_.unlock(); }

 private:
  friend class Condition;
  std::unique_lock<std::mutex> lock_;
};

// As std::condition_variable. The analysis cannot see that the caller of a predicate holds the lock, so it skips the two.
class Condition {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

  template <class Predicate>
  void wait(MutexLock& lock, Predicate done) KVILT_NO_THREAD_SAFETY_ANALYSIS {
    condition_.wait(lock.lock_, done);
  }

  // False: the time is over, and `done` still says no.
  template <class Duration, class Predicate>
  bool wait_for(MutexLock& lock, Duration patience, Predicate done) KVILT_NO_THREAD_SAFETY_ANALYSIS {
    return condition_.wait_for(lock.lock_, patience, done);
  }

 private:
  std::condition_variable condition_;
};

}  // namespace kvilt
