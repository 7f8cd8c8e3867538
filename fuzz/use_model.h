// fuzz/use_model.h: what an engine does first with a model that opened: reads the edges of every weight, encodes and
// decodes. A view that reaches beyond its file, or an id beyond the vocabulary, shows here.
#pragma once

#include <cmath>
#include <vector>

#include "base/check.h"
#include "model/config.h"
#include "model/weights.h"
#include "tensor/dequantize.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace kvilt {

inline void use_tensor(const Tensor& tensor, int64_t rows, int64_t cols) {
  CHECK(tensor && tensor.rows == rows && tensor.cols == cols);
  std::vector<float> row(static_cast<size_t>(cols));
  for (const int64_t r : {int64_t{0}, rows - 1}) {
    dequantize(tensor.dtype, tensor.data + static_cast<size_t>(r) * tensor.row_bytes(), row.size(), row.data());
  }
}

inline void use_weights(const ModelConfig& c, const ModelWeights& weights) {
  CHECK(c.L > 0 && c.D > 0 && c.H > 0 && c.G > 0 && c.H % c.G == 0 && c.E >= 2 && c.F > 0 && c.V > 0 && c.context > 0);
  CHECK(c.rope.inv_freq.size() == static_cast<size_t>(c.rope.rotary_dim / 2));
  for (const double f : c.rope.inv_freq) CHECK(std::isfinite(f) && (f > 0 || (f == 0 && !c.local_layers.empty())));
  CHECK(std::isfinite(c.rope.magnitude) && std::isfinite(c.rms_eps));
  CHECK(weights.layers.size() == static_cast<size_t>(c.L));
  use_tensor(weights.embedding, c.V, c.D);
  use_tensor(weights.lm_head.w, c.V, c.D);
  if (c.layer_input > 0) use_tensor(weights.layer_embedding, c.V, int64_t{c.L} * c.layer_input);
  for (int l = 0; l < c.L; ++l) {
    const LayerWeights& layer = weights.layers[l];
    const KvHeads heads = c.heads_at(l);
    CHECK(c.kv_layer(l) < c.kv_layers() && c.H % heads.G == 0 && c.G % heads.G == 0 && heads.E <= c.E);
    use_tensor(layer.q.w, int64_t{c.H} * heads.E, c.D);
    if (c.writes_kv(l)) use_tensor(layer.k.w, int64_t{heads.G} * heads.E, c.D);
    if (c.writes_kv(l) && !c.v_is_k_at(l)) use_tensor(layer.v.w, int64_t{heads.G} * heads.E, c.D);
    use_tensor(layer.o.w, c.D, int64_t{c.H} * heads.E);
    if (layer.k.bias) use_tensor(layer.k.bias, 1, int64_t{heads.G} * heads.E);
    for (const ExpertWeights& expert : layer.experts) use_tensor(expert.down.w, c.D, c.experts.F);
    if (!layer.down.w) continue;  // a layer of experts
    use_tensor(layer.gate.w, c.ffn_at(l), c.D);
    use_tensor(layer.down.w, c.D, c.ffn_at(l));
  }
}

// The ids are the vocabulary's, a stream of them decodes to the same text as the whole, and texts are UTF-8.
inline void use_tokenizer(const Tokenizer& tokenizer, std::string_view text) {
  const ByteRange trusted[] = {{0, text.size() / 2}};
  for (const EncodeOptions& options : {EncodeOptions{}, EncodeOptions{.add_special = true, .parse_special = true},
                                       EncodeOptions{.continues = true, .trusted = trusted}}) {
    const auto ids = tokenizer.encode(text, options);
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) CHECK(id >= 0 && id < tokenizer.vocab_size());
    const std::string whole = tokenizer.decode(*ids);
    CHECK(is_utf8(whole));
    Detokenizer stream(tokenizer, {.at_start = true});
    std::string streamed;
    for (const int32_t id : *ids) {
      const std::string part = stream.push(id);
      CHECK(is_utf8(part));
      streamed += part;
    }
    CHECK(streamed + stream.finish() == whole);
  }
  for (const int32_t id : tokenizer.end_ids()) CHECK(id >= 0 && id < tokenizer.vocab_size());
}

}  // namespace kvilt
