// tensor/rope.h: how a model rotates queries and keys by their positions; data that model files fill and kernels read.
// Source: RoFormer (arXiv:2104.09864); static scalings (linear, llama3, YaRN) are folded into inv_freq by model/.
#pragma once

#include <cstdint>
#include <vector>

namespace kvilt {

// Which pairs of a head's elements an angle rotates.
enum class RopePairs : uint8_t {
  kHalves,       // (i, i + R/2): Hugging Face layout, GGUF "neox"
  kInterleaved,  // (2i, 2i + 1): GGUF's llama
};

struct RopeConfig {
  RopePairs pairs = RopePairs::kHalves;
  int rotary_dim = 0;  // R <= E; the first R elements of a head are rotated
  double theta = 10000;
  std::vector<double> inv_freq;  // R/2 angles a position, with static scaling (linear, llama3, YaRN) applied
  double magnitude = 1;          // YaRN's: multiplies cos and sin when K and Q are first rotated, never when realigning
  bool length_dependent = false;  // dynamic NTK, LongRoPE: a cached key would be wrong at another length; reuse refuses
};

// Rotates the first R elements of one head by `rotation`, cos[R/2] then sin[R/2]; sign -1 rotates back. The plain scalar
// form: kernels have their own for whole tiles.
inline void rotate_head(RopePairs pairs, int R, const float* rotation, float sign, float* x) {
  const int half = R / 2;
  const auto rotate_pair = [&](int i, float& a, float& b) {
    const float c = rotation[i], s = sign * rotation[half + i];
    const float xa = a, xb = b;
    a = xa * c - xb * s;
    b = xa * s + xb * c;
  };
  if (pairs == RopePairs::kHalves) {
    for (int i = 0; i < half; ++i) rotate_pair(i, x[i], x[i + half]);
  } else {
    for (int i = 0; i < half; ++i) rotate_pair(i, x[2 * i], x[2 * i + 1]);
  }
}

// The RoPE of each layer: one for all, or (gemma3) a second one for the local layers. A view: it owns nothing.
struct LayerRopes {
  const RopeConfig* global;
  const RopeConfig* local = nullptr;
  const uint8_t* is_local = nullptr;                   // by layer; null: no layer is
  LayerRopes(const RopeConfig& all) : global(&all) {}  // NOLINT: one RoPE stands for all layers
  LayerRopes(const RopeConfig& global_layers, const RopeConfig& local_layers, const uint8_t* local_ones)
      : global(&global_layers), local(&local_layers), is_local(local_ones) {}
  int kind(int layer) const { return is_local != nullptr && is_local[layer] != 0 ? 1 : 0; }
  int kinds() const { return is_local != nullptr ? 2 : 1; }
  const RopeConfig& of_kind(int kind) const { return kind == 1 ? *local : *global; }
  const RopeConfig& at(int layer) const { return of_kind(kind(layer)); }
};

}  // namespace kvilt
