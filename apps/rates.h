// apps/rates.h: what this build reaches on this machine on large dense shapes: the rates behind every bound (DESIGN 8).
//   bound_s = max(linear FLOPs / matmul rate + attention FLOPs / attention rate, bytes / read bandwidth)
#pragma once

#include <string>

#include "kvilt/engine.h"

namespace kvilt {

struct Rates {
  double matmul_flops = 0;     // a second: the linear layers of four layers, M = 512
  double attention_flops = 0;  // a second: causal prefill of 2,048 rows
  double read_bytes = 0;       // a second: all threads reading 512 MiB
  double bound_s(const PromptUsage& usage) const;
};

// Best of a few runs. Loads the model once more, for its shapes and types; about three seconds for 0.5 B.
Rates measure_rates(const EngineOptions& options);

}  // namespace kvilt
