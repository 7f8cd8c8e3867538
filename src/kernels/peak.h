// kernels/peak.h: what this machine can do at most with a backend's instructions, measured now; benchmarks print it.
#pragma once

#include "base/thread_pool.h"
#include "kernels/backend.h"

namespace kvilt {

struct MachinePeak {
  // Of the instruction that multiplies this weight under Activations::kAuto, in operations a second.
  double matmul(const Backend& backend, DType weight) const {
    if (dtype_info(weight).block > 1 && int8_gops > 0) return 1e9 * int8_gops;
    return 1e9 * (weight == DType::kBF16 && backend.bf16_matmul_pays() ? bf16_gflops : fp32_gflops);
  }

  // Of the instruction that attends to rows of E elements of this type, in operations a second.
  double attention(const Backend& backend, DType kv, int E) const {
    return 1e9 * (attends_in_bf16(backend, kv, E) ? bf16_gflops : fp32_gflops);
  }

  double int8_gops = 0;    // integer dots, all threads of the pool together; 0: the backend has none
  double fp32_gflops = 0;  // fused multiply-adds
  double bf16_gflops = 0;  // bf16 pairs into fp32 sums; 0: not used here
  double read_gbs = 0;     // memory read, of a region larger than the caches: the median of some rounds
};

// Takes half a second to one: the best of several rounds. For the reference backend only read_gbs is measured.
MachinePeak measure_peak(const Backend& backend, ThreadPool& pool);
// Only MachinePeak::read_gbs: a tenth of a second, up to .6 where the last cache has hundreds of megabytes.
double measure_read_gbs(const Backend& backend, ThreadPool& pool);

}  // namespace kvilt
