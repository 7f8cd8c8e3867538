#include "base/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"

namespace kvilt {
namespace {

constexpr auto kSpin = std::chrono::microseconds(100);

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

// Either the sleeper is counted before the word is counted up, or it sees the new value: all four are in one order.
void ThreadPool::Counter::wait_while(uint32_t old) {
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (load() != old) return;
      pause_cpu();
    }
  } while (std::chrono::steady_clock::now() < until);
  sleepers_.fetch_add(1);
  while (value_.load() == old) value_.wait(old);
  sleepers_.fetch_sub(1);
}

void ThreadPool::Counter::count_up() {
  value_.fetch_add(1);
  if (sleepers_.load() != 0) value_.notify_all();
}

ThreadPool::ThreadPool(int threads) : size_(threads), shares_(static_cast<size_t>(std::max(threads, 1))) {
  CHECK(threads >= 1);
  try {
    for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (...) {
    end();
    throw;
  }
}

ThreadPool::~ThreadPool() { end(); }

void ThreadPool::end() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.count_up();
  for (auto& thread : threads_) thread.join();
}

void ThreadPool::parallel_for(int64_t count, FunctionRef<void(int64_t, int)> body) {
  if (count <= 0) return;
  if (size_ == 1 || count == 1) {
    for (int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
  split_ = false;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  run(body);
}

void ThreadPool::parallel_split(int64_t count, FunctionRef<void(int64_t, int)> body) {
  CHECK(count <= INT32_MAX);
  if (size_ == 1 || count <= 1) return parallel_for(count, body);
  split_ = true;
  for (int w = 0; w < size_; ++w) {
    const auto begin = static_cast<uint64_t>(share(count, w)), end = static_cast<uint64_t>(share(count, w + 1));
    shares_[w].left.store(begin | end << 32, std::memory_order_relaxed);
  }
  run(body);
}

void ThreadPool::run(FunctionRef<void(int64_t, int)> body) {
  body_ = &body;
  left_.reset();
  gate_.store(0, std::memory_order_release);
  epoch_.count_up();
  drain(0);
  const uint32_t joined = gate_.fetch_or(kClosed, std::memory_order_acq_rel);
  for (uint32_t left = left_.load(); left != joined; left = left_.load()) left_.wait_while(left);
  body_ = nullptr;
  if (failed_.exchange(false, std::memory_order_relaxed)) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

bool ThreadPool::take(Share& share, bool from_end, int64_t* index) {
  uint64_t left = share.left.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t begin = left & UINT32_MAX, end = left >> 32;
    if (begin == end) return false;
    *index = static_cast<int64_t>(from_end ? end - 1 : begin);
    const uint64_t rest = from_end ? begin | (end - 1) << 32 : (begin + 1) | end << 32;
    if (share.left.compare_exchange_weak(left, rest, std::memory_order_relaxed)) return true;
  }
}

void ThreadPool::drain(int worker) {
  try {
    run_indices(worker);
  } catch (...) {  // the other workers take what is left
    if (!failed_.exchange(true, std::memory_order_relaxed)) thrown_ = std::current_exception();
  }
}

void ThreadPool::run_indices(int worker) {
  int64_t index;
  if (!split_) {
    while ((index = next_.fetch_add(1, std::memory_order_relaxed)) < count_) (*body_)(index, worker);
    return;
  }
  for (int i = 0; i < size_; ++i) {
    Share& share = shares_[(worker + i) % size_];
    while (take(share, i > 0, &index)) (*body_)(index, worker);
  }
}

// Ends when the next loop begins. A core drops prefetches when too many are under way, so they are paced: a pause lasts
// about as long as 512 bytes need (17 ns on Zen 4, 45 on Intel).
void ThreadPool::fetch(Ahead& ahead, uint32_t epoch) const {
  constexpr int64_t kStep = 512;
  while (ahead.bytes > 0 && epoch_.load() == epoch) {
    for (int64_t line = 0; line < kStep; line += 64) __builtin_prefetch(ahead.data + line, 0, 2);
    pause_cpu();
    ahead.data += kStep;
    ahead.bytes -= kStep;
  }
}

void ThreadPool::work(int worker) {
  Ahead ahead;  // kept across loops that did not split, such as one row's attention
  for (uint32_t seen = 0;;) {
    epoch_.wait_while(seen);
    seen = epoch_.load();
    if (stop_.load(std::memory_order_relaxed)) return;
    uint32_t gate = gate_.load(std::memory_order_acquire);
    while (!(gate & kClosed) &&
           !gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
    }
    if (gate & kClosed) continue;  // too late; the body of the loop lives until all workers that joined are done
    drain(worker);
    if (split_) ahead = std::exchange(shares_[worker].ahead, {});  // ours only until the loop ends
    left_.count_up();
    fetch(ahead, seen);
  }
}

}  // namespace kvilt
