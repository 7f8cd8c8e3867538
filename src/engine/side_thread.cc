#include "engine/side_thread.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace kvilt {

SideThread::SideThread() {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    return;
  }
  waits_.wait();
}

SideThread::~SideThread() {
  drop();
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void SideThread::begin(const void* key, Job job) {
  CHECK(key && job);
  if (!thread_.joinable()) return;
  try {
    MutexLock lock(mutex_);
    CHECK(running_ != key && std::ranges::find(waiting_, key, &Waiting::key) == waiting_.end());
    waiting_.push_back({key, std::move(job)});
  } catch (const std::bad_alloc&) {
    return;
  }
  changed_.notify_one();
}

void SideThread::take_back(const void* key) {
  MutexLock lock(mutex_);
  std::erase_if(waiting_, [&](const Waiting& one) { return one.key == key; });
  over_.wait(lock, [&]() KVILT_REQUIRES(mutex_) { return running_ != key; });
}

void SideThread::drop() {
  MutexLock lock(mutex_);
  waiting_.clear();
}

void SideThread::run() {
  MutexLock lock(mutex_);
  waits_.count_down();
  for (;;) {
    changed_.wait(lock, [&]() KVILT_REQUIRES(mutex_) { return stop_ || !waiting_.empty(); });
    if (stop_) return;
    const Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    running_ = next.key;
    lock.unlock();
    next.job();
    lock.lock();
    running_ = nullptr;
    over_.notify_all();
  }
}

}  // namespace kvilt
