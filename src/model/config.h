// model/config.h: an architecture as data. One driver reads it; there is no class per model.
// Source: config.json of Transformers (model_type llama, qwen2, qwen3) and GGUF's general.architecture with its keys.
// Letters: D model width, H query heads, G KV heads, E head size, F FFN width, L layers, V vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/rope.h"

namespace kvilt {

// What the FFN's gate goes through; kClampedSwiglu (gpt-oss) limits gate and up and adds one to up.
enum class Gate : uint8_t { kSilu, kGeluTanh, kClampedSwiglu };

// Mixture of experts: in sparse layers a router gives each row to top_k of `count` FFNs of width F.
struct ExpertConfig {
  int count = 0;  // 0: a dense model
  int top_k = 0, F = 0;
  bool renormalise = false;     // scale the chosen experts' probabilities to sum to one
  bool biases = false;          // of the router and of the experts' layers
  bool beside_dense = false;    // gemma4: a sparse layer has a dense FFN too, and a router with a norm of its own
  std::vector<uint8_t> sparse;  // per layer; others have a dense FFN
};

// KV heads and head size of a layer.
struct KvHeads {
  int G = 0, E = 0;
  friend bool operator==(const KvHeads&, const KvHeads&) = default;
};

struct ModelConfig {
  std::string arch;  // "llama", "mistral", "qwen2", ...: docs/architectures.md
  std::string name;  // for people and clients: what the files say, else where they are (never empty in a ModelFile)
  int D = 0, H = 0, G = 0, E = 0, F = 0, L = 0, V = 0;
  int context = 0;  // positions the model was trained for
  // Each layer's own G and E where layers differ (gemma4); else empty. G and E above are then the largest: KV, queries
  // and attention have their layout, and what a layer lacks is zero (forward/head_layout.h).
  std::vector<KvHeads> heads;
  std::vector<int> ffn_widths;  // each layer's own F where they differ (gemma4); else empty
  int layer_input = 0;  // gemma4: width of what each layer gets of its row's token (Driver::add_layer_input); 0: none
  float rms_eps = 1e-6f;
  bool sinks = false;    // a learned score for each query head that is in the softmax's normaliser and has no value
  bool qk_norm = false;  // RMSNorm over E of each q and k head before RoPE
  bool v_norm = false;   // RMSNorm, without weights, of each v head
  std::vector<uint8_t> v_is_k;  // per layer, 1: v is what k was before its norm and RoPE. Empty: none
  // gemma4: the last layers have no K and V of their own; entry i is the layer whose K and V layer kv_layers() + i reads.
  std::vector<uint16_t> kv_readers;
  bool layer_scales = false;  // what leaves a layer is multiplied by a number of its own
  bool tied_embeddings = false;
  std::vector<int> window;  // per layer: a row sees its own position and window - 1 before it; -1: all. Empty: all -1
  Gate gate = Gate::kSilu;
  bool post_norms = false;      // gemma: a norm after attention and one after the FFN, before the residual is added
  bool norms_plus_one = false;  // a norm's stored weight w means 1 + w
  float embedding_scale = 1;    // multiplies the token's embedding
  float attention_scale = 0;    // of scores; 0: 1 / sqrt(E)
  float final_softcap = 0;      // c: logits become c tanh(logits / c); 0: none
  ExpertConfig experts;
  RopeConfig rope;
  RopeConfig long_rope;               // LongRoPE: for sequences of more than long_above positions
  int long_above = 0;                 // 0: no other RoPE for long ones
  RopeConfig local_rope;              // gemma3, gemma4: for the layers in local_layers
  std::vector<uint8_t> local_layers;  // per layer, 1: local_rope; empty: rope everywhere
  std::string bos_token, eos_token;   // texts, for templates
  std::vector<int32_t> eos_ids;       // ids that end a generation, as the files say
  bool add_bos = false;

  bool is_long(int64_t positions) const { return long_above > 0 && positions > long_above; }
  // The RoPE of each layer for a sequence of this length. A view of this config.
  LayerRopes ropes(int64_t positions = 0) const {
    if (is_long(positions)) return long_rope;
    return local_layers.empty() ? LayerRopes(rope) : LayerRopes(rope, local_rope, local_layers.data());
  }
  KvHeads heads_at(int layer) const { return heads.empty() ? KvHeads{G, E} : heads[layer]; }
  int ffn_at(int layer) const { return ffn_widths.empty() ? F : ffn_widths[layer]; }
  int kv_layers() const { return L - static_cast<int>(kv_readers.size()); }
  bool writes_kv(int layer) const { return layer < kv_layers(); }
  int kv_layer(int layer) const { return writes_kv(layer) ? layer : kv_readers[layer - kv_layers()]; }
  bool v_is_k_at(int layer) const { return !v_is_k.empty() && v_is_k[layer] != 0; }
  bool sparse(int layer) const { return experts.count > 0 && experts.sparse[layer] != 0; }
  int window_at(int layer) const { return window.empty() ? -1 : window[layer]; }
};

}  // namespace kvilt
