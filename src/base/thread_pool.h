// base/thread_pool.h: a fixed set of threads that run index loops; the caller works along.
// Role:       passed down to every kernel; never global.
// Invariants: which worker runs an index never changes a result: kernels write disjoint outputs per index. What a body
//             throws on any worker (no memory), the caller throws once no worker is in the loop; some indices may then
//             not have run.
// Threads:    parallel_for is called by one thread at a time (the engine thread, or a test).
// Cost:       no allocation and no lock per loop. Workers spin for 100 us before they sleep, since the gaps between the
//             kernels of one step are shorter than that. A worker that the system has not woken yet when the last index
//             is taken is not waited for: on a busy machine that would cost milliseconds per loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "base/function_ref.h"

namespace kvilt {

class ThreadPool {
 public:
  // REQUIRES: threads >= 1. The caller counts as one; threads - 1 are started. Throws std::system_error if the system
  // starts no more.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Calls body(index, worker) for every index in [0, count), worker in [0, size()); returns when all are done.
  // Indices are handed out in increasing order, one at a time: make each worth a few microseconds.
  void parallel_for(int64_t count, FunctionRef<void(int64_t index, int worker)> body);

  // The same, for indices of consecutive memory: worker w goes through [share(w), share(w + 1)) in order, and a worker
  // that is done takes single indices from the end of another's share. Two cores then read two streams of memory;
  // handed out one by one, 0.5 MB in 28 parts came at 27 GB/s instead of 51. REQUIRES: count < 2^31.
  void parallel_split(int64_t count, FunctionRef<void(int64_t index, int worker)> body);
  int64_t share(int64_t count, int worker) const { return count * worker / size_; }

  // Says what `worker` will read in the split loop after the next one. When it is done with the next one, it fetches
  // these bytes into its cache while no loop runs. Not for worker 0, the caller, which has other things to do.
  void read_ahead(int worker, const void* data, int64_t bytes) {
    shares_[worker].ahead = {static_cast<const char*>(data), bytes};
  }

 private:
  struct Ahead {
    const char* data = nullptr;
    int64_t bytes = 0;
  };
  struct alignas(64) Share {
    std::atomic<uint64_t> left{0};  // indices not yet taken: the first, and the end (upper half)
    Ahead ahead;                    // of this worker; changed between loops
  };

  // A count that others wait for. atomic's own notify asks the system whenever anybody in the process sleeps on an
  // atomic of the same hash, which all atomics at multiples of 64 bytes share: beside a second pool, whose workers
  // sleep, that was 290 calls a decode step, 1 % of its time.
  class alignas(64) Counter {
   public:
    uint32_t load() const { return value_.load(std::memory_order_acquire); }
    void reset() { value_.store(0, std::memory_order_relaxed); }  // REQUIRES: nobody waits
    void count_up();
    void wait_while(uint32_t old);  // spins for a while, then sleeps

   private:
    std::atomic<uint32_t> value_{0}, sleepers_{0};
  };

  void run(FunctionRef<void(int64_t, int)> body);
  void work(int worker);
  void drain(int worker);
  void run_indices(int worker);
  void end();
  bool take(Share& share, bool from_end, int64_t* index);
  void fetch(Ahead& ahead, uint32_t epoch) const;

  static constexpr uint32_t kClosed = uint32_t{1} << 31;
  const int size_;
  std::vector<std::thread> threads_;
  const FunctionRef<void(int64_t, int)>* body_ = nullptr;  // valid while a loop runs
  int64_t count_ = 0;
  bool split_ = false;
  std::vector<Share> shares_;  // by worker
  alignas(64) std::atomic<int64_t> next_{0};
  Counter epoch_;                                    // bumped to start a loop
  alignas(64) std::atomic<uint32_t> gate_{kClosed};  // workers that joined the current loop; kClosed: no more may
  Counter left_;                                     // workers that joined and are done
  std::atomic<bool> stop_{false}, failed_{false};
  std::exception_ptr thrown_;  // by the first worker that set failed_
};

}  // namespace kvilt
