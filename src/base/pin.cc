#include "base/pin.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

namespace kvilt {

bool pin_to_cores(ThreadPool& pool) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  if (cores.size() < static_cast<size_t>(pool.size())) return false;
  std::vector<std::atomic<bool>> pinned(pool.size());
  std::atomic<int> here{0};
  // A worker that got an index keeps it until every worker has one; one that the system is slow to wake gets its index
  // in the next round.
  const auto pin = [&](int64_t, int worker) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cores[worker], &one);
    if (::pthread_setaffinity_np(::pthread_self(), sizeof one, &one) == 0) pinned[worker] = true;
    ++here;
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (here < pool.size() && std::chrono::steady_clock::now() < until) ::sched_yield();
  };
  const auto all = [&] { return std::ranges::all_of(pinned, [](const auto& is) { return is.load(); }); };
  for (int round = 0; round < 10 && !all(); ++round) {
    here = 0;
    pool.parallel_for(pool.size(), pin);
  }
  return all();
}

}  // namespace kvilt
