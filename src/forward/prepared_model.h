// forward/prepared_model.h: a model's weights made ready for one backend: linear layers packed, norms as fp32.
// Threads:  prepare on one thread; immutable afterwards.
// Not here: files (model/), kernels (kernels/).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/backend.h"
#include "kvilt/result.h"
#include "model/model_file.h"

namespace kvilt {

struct PreparedLinear {
  std::unique_ptr<PackedWeight> w;
  std::vector<float> bias;  // N, or empty
  MatmulJob job(Mat<float> y, bool accumulate = false) const {
    return {w.get(), bias.empty() ? nullptr : bias.data(), y, accumulate};
  }
};

struct PreparedExpert {
  PreparedLinear gate, up, down;
  float scale = 1;  // of its output
};

// With config.experts.beside_dense; D each. router_norm is the whole of what a row goes through before the router.
struct PreparedBeside {
  std::vector<float> post_dense_norm, expert_norm, post_expert_norm, router_norm;
};

// With config.layer_input.
struct PreparedLayerInput {
  PreparedLinear projection;  // of the token's embedding
  PreparedLinear gate, out;
  std::vector<float> norm;  // D
};

struct PreparedLayer {
  std::vector<float> attn_norm, ffn_norm;            // D
  std::vector<float> post_attn_norm, post_ffn_norm;  // D, or empty
  std::vector<float> q_norm, k_norm, v_norm;         // E, or empty
  std::vector<float> sinks;                          // H, or empty
  PreparedLinear q, k, v, o, gate, up, down;
  float scale = 1;        // of what leaves the layer
  PreparedLinear router;  // of a sparse layer, which has no gate, up and down of its own
  std::vector<PreparedExpert> experts;
  PreparedBeside beside;
  PreparedLayerInput input;
};

class PreparedModel {
 public:
  // pack_cache: a folder that keeps packed weights for later starts, or empty (pack_cache.h); weights that
  // `activations` widens are not kept there. progress: called with the share that is done, in (0, 1]; may be empty.
  static std::unique_ptr<PreparedModel> prepare(std::shared_ptr<const ModelFile> file, const Backend& backend,
                                                ThreadPool& pool, const std::function<void(double)>& progress,
                                                const std::string& pack_cache = "",
                                                Activations activations = Activations::kAuto);

  const ModelConfig& config() const { return file_->config; }
  const Backend& backend() const { return *backend_; }
  const PreparedLayer& layer(int l) const { return layers_[l]; }
  const std::vector<float>& final_norm() const { return final_norm_; }
  const PreparedLinear& lm_head() const { return lm_head_; }
  // What a row costs that goes through the layers and the head, where one through the layers alone costs 1.
  double cost_with_head() const;
  void embed(int32_t token, float* x) const;  // D values
  // With config.layer_input: what the layer has of the token by itself, and the norm of its projection.
  void embed_for(int layer, int32_t token, float* x) const;
  const std::vector<float>& layer_projection_norm() const { return layer_projection_norm_; }
  AttendShape attend_shape(DType kv) const;
  // AttendTask::sinks of a KV head's group; null where the model has none.
  const float* sinks(int layer, int head) const {
    const std::vector<float>& all = layers_[layer].sinks;
    return all.empty() ? nullptr : all.data() + int64_t{head} * (config().H / config().G);
  }
  int64_t weight_bytes() const { return weight_bytes_; }
  int64_t parameters() const { return parameters_; }

 private:
  std::shared_ptr<const ModelFile> file_;
  const Backend* backend_ = nullptr;
  std::vector<PreparedLayer> layers_;
  std::vector<float> final_norm_, layer_projection_norm_;
  PreparedLinear lm_head_;
  int64_t weight_bytes_ = 0, parameters_ = 0;
};

}  // namespace kvilt
