// kernels/peak.h: what this machine can do at most with a backend's instructions, measured now; benchmarks print it.
#pragma once

#include "base/thread_pool.h"
#include "kernels/backend.h"

namespace kvilt {

struct MachinePeak {
  double int8_gops = 0;    // integer dots, all threads of the pool together; 0: the backend has none
  double fp32_gflops = 0;  // fused multiply-adds
  double bf16_gflops = 0;  // bf16 pairs into fp32 sums; 0: attention does not use them here
  double read_gbs = 0;     // memory read, of a region larger than the caches
};

// Takes about half a second: the best of several rounds. The reference backend is given the machine's plain read rate
// alone.
MachinePeak measure_peak(const Backend& backend, ThreadPool& pool);

}  // namespace kvilt
