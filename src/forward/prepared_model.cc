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

PreparedBeside beside_of(const BesideWeights& from, int D) {
  PreparedBeside out{as_floats(from.post_dense_norm), as_floats(from.expert_norm), as_floats(from.post_expert_norm),
                     as_floats(from.router_scale)};
  for (float& w : out.router_norm) w /= std::sqrt(static_cast<float>(D));
  return out;
}

// The layer's rows of the projection that all layers have in one tensor.
LinearWeights projection_of(const LinearWeights& all, int layer, int width) {
  Tensor rows = all.w;
  rows.rows = width;
  rows.data += static_cast<size_t>(layer) * static_cast<size_t>(width) * rows.row_bytes();
  return {rows, {}};
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
    if (from.scale) layer.scale = as_floats(from.scale)[0];
    const auto number = static_cast<int>(model->layers_.size());
    if (file->config.v_norm) layer.v_norm.assign(static_cast<size_t>(file->config.heads_at(number).E), 1);
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
    if (from.beside.router_scale) layer.beside = beside_of(from.beside, file->config.D);
    const std::vector<float> shares = as_floats(from.beside.expert_scale);
    if (from.input.gate.w) {
      prepare_one(layer.input.projection, projection_of(weights.layer_projection, number, file->config.layer_input));
      prepare_one(layer.input.gate, from.input.gate);
      prepare_one(layer.input.out, from.input.out);
      layer.input.norm = as_floats(from.input.norm);
    }
    for (const ExpertWeights& expert : from.experts) {
      PreparedExpert& to = layer.experts.emplace_back();
      if (!shares.empty()) to.scale = shares[layer.experts.size() - 1];
      prepare_one(to.gate, expert.gate);
      prepare_one(to.up, expert.up);
      prepare_one(to.down, expert.down);
    }
    model->layers_.push_back(std::move(layer));
    if (progress) progress(static_cast<double>(model->layers_.size()) / static_cast<double>(weights.layers.size() + 1));
  }
  model->final_norm_ = norm_weights(weights.final_norm, file->config);
  model->layer_projection_norm_ = as_floats(weights.layer_projection_norm);
  model->parameters_ += weights.layer_embedding.rows * weights.layer_embedding.cols;
  model->lm_head_ = prepare_linear(weights.lm_head, packed, activations);
  count(model->lm_head_);
  packed.keep();
  if (!file->config.tied_embeddings) model->parameters_ += weights.embedding.rows * weights.embedding.cols;
  model->file_ = std::move(file);
  if (progress) progress(1);
  return model;
}

double PreparedModel::cost_with_head() const {
  double layers = 0;  // multiplications with weights
  const auto add = [&](const PreparedLinear& linear, double times) {
    if (linear.w) layers += times * static_cast<double>(linear.w->N * linear.w->K);
  };
  for (const PreparedLayer& layer : layers_) {
    for (const PreparedLinear* linear : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down,
                                         &layer.router, &layer.input.projection, &layer.input.gate, &layer.input.out})
      add(*linear, 1);
    const double chosen = layer.experts.empty() ? 0 : 1.0 * config().experts.top_k / config().experts.count;
    for (const PreparedExpert& expert : layer.experts) {
      for (const PreparedLinear* linear : {&expert.gate, &expert.up, &expert.down}) add(*linear, chosen);
    }
  }
  return 1 + static_cast<double>(lm_head_.w->N * lm_head_.w->K) / layers;
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

void PreparedModel::embed_for(int layer, int32_t token, float* x) const {
  const Tensor& table = file_->weights.layer_embedding;
  CHECK(token >= 0 && token < table.rows);
  const int width = config().layer_input;
  const auto from = static_cast<size_t>(layer) * static_cast<size_t>(width);
  dequantize(table.dtype, table.data + static_cast<size_t>(token) * table.row_bytes() + dtype_bytes(table.dtype, from),
             static_cast<size_t>(width), x);
  const float scale = std::sqrt(static_cast<float>(width));
  for (int i = 0; i < width; ++i) x[i] *= scale;
}

AttendShape PreparedModel::attend_shape(DType kv) const {
  const ModelConfig& c = config();
  // One shape for all layers, while a page table has a rotation for each kind: a smaller one would be read past its end.
  const LayerRopes ropes = c.ropes();
  for (int kind = 0; kind < ropes.kinds(); ++kind) {
    const RopeConfig& rope = ropes.of_kind(kind);
    CHECK(rope.rotary_dim == c.rope.rotary_dim && rope.pairs == c.rope.pairs);
  }
  const float scale = c.attention_scale > 0 ? c.attention_scale : 1.0f / std::sqrt(static_cast<float>(c.E));
  return {c.H / c.G, c.E, scale, kv, c.rope.pairs, c.rope.rotary_dim};
}

}  // namespace kvilt
