// apps/bench/rates.h: what this build reaches on this machine on large dense shapes, and what the machine's
// instructions could: the rates that every bound is made of.
//   reached:   bound_s = max(linear FLOPs / matmul rate + attention FLOPs / attention rate, bytes / read bandwidth) of
//              the layers, plus the same of the head. The head works on one row, after all layers, and no cache holds
//              its weights then (0.5 B: 145 MB, 4.4 ms of reading for 0.4 ms of arithmetic)
//   possible:  gemm_bound = the same FLOPs at the measured peak of the instruction that each kernel uses
#pragma once

#include <memory>
#include <string>

#include "kernels/peak.h"
#include "kvilt/engine.h"

namespace kvilt {

struct Rates {
  double matmul_flops = 0;          // a second: the linear layers of four layers, M = 512
  double attention_flops = 0;       // a second: causal prefill of 2,048 rows
  double read_bytes = 0;            // a second: all threads reading what no cache holds
  double attention_peak_flops = 0;  // a second: the instruction that attends over this KV type
  DType kv_type = DType::kF32;
  MachinePeak peak;              // of the backend's instructions
  double linear_peak_flops = 0;  // a second: every weight at its instruction's peak (integer dots for quantised ones)
  double weight_bytes = 0;       // of the linear layers and the head, as the file stores them
  double head_flops = 0, head_bytes = 0;           // of one row, as PromptUsage counts them
  double bound_s(const PromptUsage& usage) const;  // of a prefill of which only the last row runs through the head
  double gemm_bound_s(const PromptUsage& usage) const;
};

// Holds the model once more, for its shapes and types, and a pool of its own.
class RateProbe {
 public:
  explicit RateProbe(const EngineOptions& options);  // exits with 1 if the model cannot be opened
  ~RateProbe();
  Rates measure();                             // the best of a few runs; about three seconds for 0.5 B
  double attention_flops(int64_t rows) const;  // a second: causal prefill of `rows` rows in one layer
  double read_bytes() const;                   // a second, now: memory of virtual machines has phases

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

Rates measure_rates(const EngineOptions& options);

struct MatmulShape {
  DType dtype = DType::kF32;
  int64_t N = 0, K = 0;
  auto operator<=>(const MatmulShape&) const = default;
};
struct MatmulRate {
  double gop_s = 0, gb_s = 0;  // gb_s: of weights as the file stores them
};
// Of random weights on all cores, the best call of a fifth of a second (bench_kernels.cc).
MatmulRate matmul_rate(const Backend& backend, const MatmulShape& shape, int64_t rows);

}  // namespace kvilt
