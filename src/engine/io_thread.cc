#include "engine/io_thread.h"

#include <new>
#include <utility>

namespace kvilt {

IoThread::IoThread(int64_t most_bytes) : most_bytes_(most_bytes), thread_([this] { run(); }) {}

void IoThread::every(std::chrono::milliseconds pause, Job job) {
  {
    MutexLock lock(mutex_);
    regular_ = {std::move(job), pause};
  }
  changed_.notify_all();
}

void IoThread::read(Job job) {
  {
    MutexLock lock(mutex_);
    reads_.push_back(std::move(job));
  }
  changed_.notify_all();
}

bool IoThread::has_room(int64_t bytes) const {
  MutexLock lock(mutex_);
  return fits(bytes);
}

void IoThread::wait_for_room(int64_t bytes) {
  MutexLock lock(mutex_);
  changed_.wait(lock, [&]() KVILT_REQUIRES(mutex_) { return fits(bytes); });
}

void IoThread::write(Job job, int64_t bytes, Job done) {
  {
    MutexLock lock(mutex_);
    writes_.push_back({std::move(job), bytes, std::move(done)});
    bytes_ += bytes;
  }
  changed_.notify_all();
}

int64_t IoThread::drop_writes() {
  std::deque<Write> dropped;  // their memory is given back outside of the lock
  int64_t bytes = 0;
  MutexLock lock(mutex_);
  for (const Write& write : writes_) bytes += write.bytes;
  bytes_ -= bytes;
  dropped.swap(writes_);
  return bytes;
}

void IoThread::finish() {
  {
    MutexLock lock(mutex_);
    finish_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// Where memory ends in a job, the others go on.
void IoThread::run(const Job& job) {
  try {
    job();
  } catch (const std::bad_alloc&) {
  }
}

void IoThread::run() {
  using Clock = std::chrono::steady_clock;
  Clock::time_point due = Clock::now();  // when the regular job is
  bool writes_turn = false;              // it ran, and no write did since
  for (;;) {
    Write next;
    std::optional<Clock::duration> pause;  // behind the regular job
    {
      MutexLock lock(mutex_);
      const auto called = [&]() KVILT_REQUIRES(mutex_) { return finish_ || !reads_.empty() || !writes_.empty(); };
      if (regular_) {
        changed_.wait_for(lock, due - Clock::now(), called);
      } else {
        changed_.wait(lock, [&]() KVILT_REQUIRES(mutex_) { return called() || regular_; });
      }
      if (!reads_.empty()) {
        next.job = std::move(reads_.front());
        reads_.pop_front();
      } else if (regular_ && !finish_ && Clock::now() >= due && !(writes_turn && !writes_.empty())) {
        next.job = regular_->job;
        pause = regular_->pause;
        writes_turn = true;
      } else if (!writes_.empty()) {
        next = std::move(writes_.front());
        writes_.pop_front();
        writes_turn = false;
      } else if (finish_) {
        return;
      } else {
        continue;
      }
    }
    run(next.job);
    if (pause) due = Clock::now() + *pause;  // a slow store is not asked all the time
    next.job = nullptr;                      // what it held is free before its bytes count as free
    if (next.bytes > 0) {
      {
        MutexLock lock(mutex_);
        bytes_ -= next.bytes;
      }
      changed_.notify_all();
    }
    if (next.done) run(next.done);
  }
}

}  // namespace kvilt
