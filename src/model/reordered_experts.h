// model/reordered_experts.h: gpt-oss's experts as Hugging Face stores them, in the order of weights.h.
// Role:    a file has one tensor for gate and up of all experts, input by input (experts x D x 2 F; an even column is the
//          gate's, the next one is up's), and one for down (experts x F x D). Linear layers here are output by output.
// Cost:    a copy of a layer's experts in memory: the only weights that are not views into the file. Packing makes its
//          own copy of them, as of all others; the pack cache does not keep them.
// Threads: pure.
// Not here: experts in MXFP4 (gate_up_proj_blocks), which read_config refuses; a GGUF has them as views.
#pragma once

#include <vector>

#include "model/weights.h"

namespace kvilt {

struct GptOssExperts {
  Tensor gate_up, gate_up_bias;  // (experts * D) x 2 F, experts x 2 F
  Tensor down, down_bias;        // (experts * F) x D, experts x D
};

// Appends `count` experts to out; they point into the result. REQUIRES: dtypes without blocks (F32, F16, BF16).
Reordered reorder_experts(const GptOssExperts& from, int count, std::vector<ExpertWeights>& out);

}  // namespace kvilt
