// model/weights.h: where the tensors of a model are. Views into mapped files, but for what is reordered.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "kvilt/result.h"
#include "model/config.h"
#include "tensor/dtype.h"

namespace kvilt {

// One tensor as stored: rows x cols, row-major, each row cols/block blocks of its dtype. A vector has rows == 1.
// Row r of a linear layer gives output r: y[r] = sum over c of w[r][c] x[c].
struct Tensor {
  const std::byte* data = nullptr;  // null: the model has no such tensor
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0;
  explicit operator bool() const { return data != nullptr; }
  size_t row_bytes() const { return dtype_bytes(dtype, static_cast<size_t>(cols)); }
};

using Reordered = std::shared_ptr<const std::vector<std::byte>>;  // reordered_experts.h

struct LinearWeights {
  Tensor w;
  Tensor bias;  // optional, 1 x rows
};

struct ExpertWeights {
  LinearWeights gate, up, down;  // F x D, F x D, D x F with F of config.experts
};

// What a sparse layer has with experts.beside_dense: norms of the dense FFN's output, and of the experts' input and
// output; the router's input is scaled, and each expert's share.
struct BesideWeights {
  Tensor post_dense_norm, expert_norm, post_expert_norm;  // 1 x D
  Tensor router_scale;                                    // 1 x D
  Tensor expert_scale;                                    // 1 x experts
};

// With config.layer_input, I of it: what a layer adds of its row's token.
struct LayerInputWeights {
  LinearWeights gate, out;  // I x D, D x I
  Tensor norm;              // 1 x D
};

struct LayerWeights {
  Tensor attn_norm;  // 1 x D
  // (H*E) x D, (G*E) x D, (G*E) x D, with G and E of heads_at(); no v with v_is_k, no k and v without writes_kv
  LinearWeights q, k, v;
  Tensor q_norm, k_norm;                 // 1 x E, with config.qk_norm
  Tensor scale;                          // 1 x 1, with config.layer_scales
  LinearWeights o;                       // D x (H*E)
  Tensor sinks;                          // 1 x H, with config.sinks
  Tensor ffn_norm;                       // 1 x D
  Tensor post_attn_norm, post_ffn_norm;  // 1 x D, with config.post_norms
  LinearWeights gate, up, down;          // F x D, F x D, D x F; none in a sparse layer (but beside_dense), which has
  LinearWeights router;                  // experts x D
  std::vector<ExpertWeights> experts;
  BesideWeights beside;
  LayerInputWeights input;
};

struct ModelWeights {
  Tensor embedding;  // V x D
  std::vector<LayerWeights> layers;
  Tensor final_norm;                 // 1 x D
  LinearWeights lm_head;             // V x D; tied: the same view as embedding
  Tensor layer_embedding;            // V x (L*I), with config.layer_input
  LinearWeights layer_projection;    // (L*I) x D
  Tensor layer_projection_norm;      // 1 x I
  std::vector<Reordered> reordered;  // what tensors above point to where a file's order is not ours
};

}  // namespace kvilt
