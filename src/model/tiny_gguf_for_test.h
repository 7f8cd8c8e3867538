// model/tiny_gguf_for_test.h: a whole tiny model as GGUF bytes: any architecture, any tensor type, and parts that are
// left out or changed on purpose. Contents are pseudo-random blocks with moderate scales. For tests only.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/gguf_bytes_for_test.h"
#include "tensor/dtype.h"

namespace kvilt {

struct TinyGguf {
  std::string arch = "llama";
  uint32_t type = 0;  // GGML's number, of the matrices
  DType dtype = DType::kF32;
  uint32_t D = 256, H = 4, G = 2, E = 64, F = 256, L = 2, V = 40;
  bool qkv_bias = false, qk_norm = false, head = false, post_norms = false, fused = false;
  std::function<void(GgufBytes&)> metadata = [](GgufBytes&) {};  // more of it
  std::function<bool(const std::string& name)> keep_key = [](const std::string&) { return true; };
  std::function<bool(const std::string& name, std::vector<uint64_t>& dims, uint32_t& type)> keep =
      [](const std::string&, std::vector<uint64_t>&, uint32_t&) { return true; };
  std::function<void(const std::string& name, std::string& bytes)> change = [](const std::string&, std::string&) {};
  std::function<void(GgufBytes&)> tensors = [](GgufBytes&) {};  // more of them

  std::string build() const {
    GgufBytes out;
    out.string("general.architecture", arch);
    const auto u32 = [&](const std::string& key, uint32_t x) {
      if (keep_key(key)) out.u32(arch + "." + key, x);
    };
    u32("embedding_length", D);
    u32("attention.head_count", H);
    u32("attention.head_count_kv", G);
    u32("attention.key_length", E);
    u32("feed_forward_length", F);
    u32("block_count", L);
    u32("context_length", 64);
    out.string("tokenizer.ggml.model", "llama");
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    std::vector<int32_t> kinds = {2, 3, 3};
    for (char c = 'a'; c <= 'z'; ++c) tokens.emplace_back(1, c), kinds.push_back(1);
    out.strings("tokenizer.ggml.tokens", tokens).numbers("tokenizer.ggml.token_type", GgufType::kI32, kinds);
    out.numbers("tokenizer.ggml.scores", GgufType::kF32, std::vector<float>(tokens.size(), 0));
    out.u32("tokenizer.ggml.bos_token_id", 1).u32("tokenizer.ggml.eos_token_id", 2);
    metadata(out);
    add(out, "token_embd.weight", {D, V}, type, dtype);
    add(out, "output_norm.weight", {D}, 0, DType::kF32);
    if (head) add(out, "output.weight", {D, V}, type, dtype);
    for (uint32_t l = 0; l < L; ++l) layer(out, "blk." + std::to_string(l) + ".");
    tensors(out);
    return out.build();
  }

 private:
  void layer(GgufBytes& out, const std::string& p) const {
    const struct {
      const char* name;
      std::vector<uint64_t> dims;
    } matrices[] = {{"attn_q", {D, H * E}}, {"attn_k", {D, G * E}}, {"attn_v", {D, G * E}}, {"attn_output", {H * E, D}},
                    {"ffn_gate", {D, F}},   {"ffn_up", {D, F}},     {"ffn_down", {F, D}}};
    for (const auto& m : matrices) {
      const std::string name = m.name;
      if (fused && (name == "attn_q" || name == "attn_k" || name == "attn_v" || name.starts_with("ffn_gate"))) continue;
      add(out, p + name + ".weight", fused && name == "ffn_up" ? std::vector<uint64_t>{D, 2 * F} : m.dims, type, dtype);
    }
    if (fused) add(out, p + "attn_qkv.weight", {D, (H + 2 * G) * E}, type, dtype);
    for (const char* norm : {"attn_norm", "ffn_norm"}) add(out, p + norm + ".weight", {D}, 0, DType::kF32);
    if (qk_norm) {
      for (const char* norm : {"attn_q_norm", "attn_k_norm"}) add(out, p + norm + ".weight", {E}, 0, DType::kF32);
    }
    if (post_norms) {
      for (const char* norm : {"post_attention_norm", "post_ffw_norm"})
        add(out, p + norm + ".weight", {D}, 0, DType::kF32);
    }
    if (qkv_bias) {
      add(out, p + "attn_q.bias", {H * E}, 0, DType::kF32);
      for (const char* bias : {"attn_k.bias", "attn_v.bias"}) add(out, p + bias, {G * E}, 0, DType::kF32);
    }
  }
  void add(GgufBytes& out, const std::string& name, std::vector<uint64_t> dims, uint32_t id, DType kind) const {
    if (!keep(name, dims, id)) return;
    size_t count = 1;
    for (const uint64_t d : dims) count *= d;
    std::string bytes = contents(kind, count);
    change(name, bytes);
    out.tensor(name, dims, id, bytes);
  }
  // Small floats, or blocks whose fp16 fields are small and whose other bytes are anything.
  std::string contents(DType kind, size_t count) const {
    const DTypeInfo info = dtype_info(kind);
    std::string out(dtype_bytes(kind, count), '\0');
    uint32_t state = static_cast<uint32_t>(count) * 2654435761u + 1;
    const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 16; };
    const auto small = [&] { return (static_cast<float>(next() % 2001) - 1000.0f) / 20000.0f; };
    const auto put = [&](size_t at, auto value) { std::memcpy(out.data() + at, &value, sizeof value); };
    for (char& c : out) c = static_cast<char>(next());
    for (size_t at = 0; at < out.size(); at += static_cast<size_t>(info.block_bytes)) {
      switch (kind) {
        case DType::kF32:
          put(at, small());
          break;
        case DType::kBF16:
          put(at, f32_to_bf16(small()));
          break;
        case DType::kQ6_K:
          put(at + 208, f32_to_f16(small() / 1000));
          break;
        case DType::kQ4_K:
        case DType::kQ5_K:
          put(at, f32_to_f16(small() / 1000));
          put(at + 2, f32_to_f16(small() / 1000));
          break;
        case DType::kQ4_1:
        case DType::kQ5_1:
          put(at + 2, f32_to_f16(small() / 10));
          [[fallthrough]];
        default:
          put(at, f32_to_f16(kind == DType::kF16 ? small() : small() / 10));
          break;
      }
    }
    return out;
  }
};

// Every tensor type that weights may have, with GGML's number.
constexpr struct {
  uint32_t id;
  DType dtype;
} kTinyTypes[] = {{0, DType::kF32},   {1, DType::kF16},   {30, DType::kBF16}, {2, DType::kQ4_0},
                  {3, DType::kQ4_1},  {6, DType::kQ5_0},  {7, DType::kQ5_1},  {8, DType::kQ8_0},
                  {12, DType::kQ4_K}, {13, DType::kQ5_K}, {14, DType::kQ6_K}};

}  // namespace kvilt
