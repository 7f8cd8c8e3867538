#include "forward/prepared_model.h"

#include <cmath>

#include "base/check.h"
#include "forward/pack_cache.h"
#include "tensor/dequantize.h"

namespace kvilt {
namespace {

std::vector<float> as_floats(const Tensor& tensor) {
  std::vector<float> out(static_cast<size_t>(tensor.rows * tensor.cols));
  if (tensor) dequantize(tensor.dtype, tensor.data, out.size(), out.data());
  return out;
}

std::vector<float> norm_weights(const Tensor& tensor, const ModelConfig& config) {
  std::vector<float> out = as_floats(tensor);
  if (config.norms_plus_one) {
    for (float& w : out) w += 1;
  }
  return out;
}

PreparedLinear prepare_linear(const LinearWeights& from, PackCache& weights, Activations activations) {
  return {weights.get({from.w.data, from.w.dtype, from.w.rows, from.w.cols, activations}), as_floats(from.bias)};
}

}  // namespace

std::unique_ptr<PreparedModel> PreparedModel::prepare(std::shared_ptr<const ModelFile> file, const Backend& backend,
                                                      ThreadPool& pool, const std::function<void(double)>& progress,
                                                      const std::string& pack_cache, Activations activations) {
  auto model = std::make_unique<PreparedModel>();
  const ModelWeights& weights = file->weights;
  model->backend_ = &backend;
  PackCache packed(pack_cache, *file, backend, pool);
  const auto count = [&](const PreparedLinear& linear) {
    model->weight_bytes_ += static_cast<int64_t>(linear.w->bytes);
    model->parameters_ += linear.w->N * linear.w->K + static_cast<int64_t>(linear.bias.size());
  };
  for (const LayerWeights& from : weights.layers) {
    PreparedLayer layer;
    const std::pair<std::vector<float>*, const Tensor*> norms[] = {{&layer.attn_norm, &from.attn_norm},
                                                                   {&layer.ffn_norm, &from.ffn_norm},
                                                                   {&layer.post_attn_norm, &from.post_attn_norm},
                                                                   {&layer.post_ffn_norm, &from.post_ffn_norm},
                                                                   {&layer.q_norm, &from.q_norm},
                                                                   {&layer.k_norm, &from.k_norm}};
    for (const auto& [to, source] : norms) *to = norm_weights(*source, file->config);
    layer.sinks = as_floats(from.sinks);
    const std::pair<PreparedLinear*, const LinearWeights*> linears[] = {
        {&layer.q, &from.q},       {&layer.k, &from.k},   {&layer.v, &from.v},      {&layer.o, &from.o},
        {&layer.gate, &from.gate}, {&layer.up, &from.up}, {&layer.down, &from.down}};
    const auto prepare_one = [&](PreparedLinear& to, const LinearWeights& source) {
      to = prepare_linear(source, packed, activations);
      count(to);
    };
    for (const auto& [to, source] : linears) {
      if (source->w) prepare_one(*to, *source);
    }
    if (!from.experts.empty()) prepare_one(layer.router, from.router);
    for (const ExpertWeights& expert : from.experts) {
      PreparedExpert& to = layer.experts.emplace_back();
      prepare_one(to.gate, expert.gate);
      prepare_one(to.up, expert.up);
      prepare_one(to.down, expert.down);
    }
    model->layers_.push_back(std::move(layer));
    if (progress) progress(static_cast<double>(model->layers_.size()) / static_cast<double>(weights.layers.size() + 1));
  }
  model->final_norm_ = norm_weights(weights.final_norm, file->config);
  model->lm_head_ = prepare_linear(weights.lm_head, packed, activations);
  count(model->lm_head_);
  packed.keep();
  if (!file->config.tied_embeddings) model->parameters_ += weights.embedding.rows * weights.embedding.cols;
  model->file_ = std::move(file);
  if (progress) progress(1);
  return model;
}

void PreparedModel::embed(int32_t token, float* x) const {
  const Tensor& table = file_->weights.embedding;
  CHECK(token >= 0 && token < table.rows);
  dequantize(table.dtype, table.data + static_cast<size_t>(token) * table.row_bytes(), static_cast<size_t>(table.cols),
             x);
  if (const float scale = file_->config.embedding_scale; scale != 1) {
    for (int64_t i = 0; i < table.cols; ++i) x[i] *= scale;
  }
}

AttendShape PreparedModel::attend_shape(DType kv) const {
  const ModelConfig& c = config();
  const float scale = c.attention_scale > 0 ? c.attention_scale : 1.0f / std::sqrt(static_cast<float>(c.E));
  return {c.H / c.G, c.E, scale, kv, c.rope.pairs, c.rope.rotary_dim};
}

}  // namespace kvilt
