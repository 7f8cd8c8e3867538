#include "base/thread_pool.h"

#include <chrono>

#include "base/check.h"

namespace kvilt {
namespace {

constexpr auto kSpin = std::chrono::microseconds(20);

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins for kSpin, then sleeps on the futex, until `word` differs from `old`.
template <class T>
void wait_while_equal(const std::atomic<T>& word, T old) {
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (word.load(std::memory_order_acquire) != old) return;
      pause_cpu();
    }
  } while (std::chrono::steady_clock::now() < until);
  while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) : size_(threads) {
  CHECK(threads >= 1);
  for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void ThreadPool::parallel_for(int64_t count, FunctionRef<void(int64_t, int)> body) {
  if (count <= 0) return;
  if (size_ == 1 || count == 1) {
    for (int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  body_ = &body;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  left_.store(0, std::memory_order_relaxed);
  gate_.store(0, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  drain(0);
  const uint32_t joined = gate_.fetch_or(kClosed, std::memory_order_acq_rel);
  for (uint32_t left = left_.load(std::memory_order_acquire); left != joined;
       left = left_.load(std::memory_order_acquire)) {
    wait_while_equal(left_, left);
  }
  body_ = nullptr;
}

void ThreadPool::drain(int worker) {
  for (;;) {
    const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= count_) return;
    (*body_)(index, worker);
  }
}

void ThreadPool::work(int worker) {
  for (uint32_t seen = 0;;) {
    wait_while_equal(epoch_, seen);
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    uint32_t gate = gate_.load(std::memory_order_acquire);
    while (!(gate & kClosed) &&
           !gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
    }
    if (gate & kClosed) continue;  // too late; while the loop runs, its body lives: who joined is waited for
    drain(worker);
    left_.fetch_add(1, std::memory_order_acq_rel);
    left_.notify_one();
  }
}

}  // namespace kvilt
