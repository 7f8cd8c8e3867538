#include "model/fingerprint.h"

#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "base/hex.h"
#include "base/keyed_hash.h"

namespace kvilt {
namespace {

constexpr size_t kEdgeBytes = 16 << 10;     // of each end of a tensor
constexpr size_t kSampleBytes = 4 << 10;    // between them
constexpr size_t kSampleStride = 16 << 20;  // bytes from one sample to the next

std::string_view as_text(const std::byte* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

template <class T>
void add_value(KeyedHash& hash, const T& value) {
  hash.add(std::string_view(reinterpret_cast<const char*>(&value), sizeof value));
}

void add_rope(KeyedHash& hash, const RopeConfig& rope) {
  add_value(hash, rope.pairs);
  add_value(hash, rope.rotary_dim);
  add_value(hash, rope.magnitude);
  for (const double frequency : rope.inv_freq) add_value(hash, frequency);
}

void add_config(KeyedHash& hash, const ModelConfig& config) {
  hash.add(config.arch);
  for (const int size : {config.D, config.H, config.G, config.E, config.F, config.L, config.V}) add_value(hash, size);
  add_value(hash, config.rms_eps);
  for (const bool flag : {config.qk_norm, config.tied_embeddings, config.rope.length_dependent, config.post_norms,
                          config.norms_plus_one, config.gate == Gate::kGeluTanh})
    add_value(hash, flag);
  if (config.gate == Gate::kClampedSwiglu) hash.add("clamped swiglu");
  if (config.sinks) hash.add("sinks");
  for (const KvHeads& heads : config.heads) {
    for (const int size : {heads.G, heads.E}) add_value(hash, size);
  }
  for (const int width : config.ffn_widths) add_value(hash, width);
  if (config.layer_input > 0) add_value(hash, config.layer_input);
  if (config.experts.beside_dense) hash.add("experts beside");
  if (config.v_norm) hash.add("v norm");
  for (const uint8_t v_is_k : config.v_is_k) add_value(hash, v_is_k);
  for (const uint16_t source : config.kv_readers) add_value(hash, source);
  for (const float scale : {config.embedding_scale, config.attention_scale, config.final_softcap})
    add_value(hash, scale);
  const ExpertConfig& experts = config.experts;
  if (experts.count > 0) {  // dense models keep the names they had
    for (const int size : {experts.count, experts.top_k, experts.F}) add_value(hash, size);
    add_value(hash, experts.renormalise);
    for (const uint8_t sparse : experts.sparse) add_value(hash, sparse);
  }
  for (const int window : config.window) add_value(hash, window);
  add_rope(hash, config.rope);
  for (const uint8_t local : config.local_layers) add_value(hash, local);
  if (!config.local_layers.empty()) add_rope(hash, config.local_rope);
  if (config.long_above > 0) add_rope(hash, config.long_rope);
}

void add_contents(KeyedHash& hash, const std::byte* data, size_t size) {
  const size_t head = std::min(size, kEdgeBytes);
  hash.add(as_text(data, head));
  const size_t tail = std::min(size - head, kEdgeBytes);
  hash.add(as_text(data + (size - tail), tail));
  for (size_t at = kSampleStride; at + kSampleBytes <= size - tail; at += kSampleStride) {
    hash.add(as_text(data + at, kSampleBytes));
  }
}

}  // namespace

std::string fingerprint(const ModelConfig& config, const TensorTable& tensors) {
  KeyedHash hash(HashSecret::fixed(0), "kvilt.model");
  add_config(hash, config);
  for (const auto& [name, tensor] : tensors.all()) {
    hash.add(name).add(tensor.type_name);
    add_value(hash, tensor.rows);
    add_value(hash, tensor.cols);
    if (tensor.readable || tensor.type_name == "U8") add_contents(hash, tensor.data, tensor.bytes);
  }
  return hex_text(hash.finish());
}

}  // namespace kvilt
