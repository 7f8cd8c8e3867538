// model/reordered_experts.h: gpt-oss's experts as Hugging Face stores them, in the order of weights.h.
// Role:    a file has one tensor for gate and up of all experts, input by input (experts x D x 2 F; an even column is the
//          gate's, the next one is up's), and one for down (experts x F x D). Linear layers here are output by output.
//          In MXFP4 they are that, too, rows of gate and up in turn; but a block's scale is in a tensor of its own, and
//          a byte has two neighbours, where DType::kMXFP4 has the scale first and elements i and i + 16 in a byte.
// Cost:    a copy of a layer's experts in memory: the only weights that are not views into the file. Packing makes its
//          own copy of them, as of all others; the pack cache does not keep them.
// Threads: pure.
// Not here: a GGUF's experts, which are views.
#pragma once

#include <vector>

#include "model/weights.h"

namespace kvilt {

struct Mxfp4Matrix {
  const std::byte *blocks = nullptr, *scales = nullptr;  // 16 bytes and 1 byte for 32 elements
  int64_t rows = 0, cols = 0;
};

struct GptOssExperts {
  Tensor gate_up, gate_up_bias;             // (experts * D) x 2 F, experts x 2 F
  Tensor down, down_bias;                   // (experts * F) x D, experts x D
  Mxfp4Matrix gate_up_blocks, down_blocks;  // in place of gate_up and down: (experts * 2 F) x D, (experts * D) x F
};

// Appends `count` experts to out; they point into the result. REQUIRES: dtypes without blocks (F32, F16, BF16).
Reordered reorder_experts(const GptOssExperts& from, int count, std::vector<ExpertWeights>& out);

}  // namespace kvilt
