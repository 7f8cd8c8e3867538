#include "model/tensor_table.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "model/gguf.h"
#include "model/reordered_experts.h"
#include "model/safetensors.h"

namespace kvilt {
namespace {

enum class Dim : uint8_t { kOne, kD, kH, kHE, kGE, kE, kF, kV, kExperts, kExpertF, kInput, kInputs };

// layer: whose tensor it is; of tensors that belong to none, 0.
int64_t size_of(Dim dim, const ModelConfig& config, int layer) {
  const KvHeads heads = config.heads_at(layer);
  switch (dim) {
    case Dim::kOne:
      return 1;
    case Dim::kD:
      return config.D;
    case Dim::kH:
      return config.H;
    case Dim::kHE:
      return int64_t{config.H} * heads.E;
    case Dim::kGE:
      return int64_t{heads.G} * heads.E;
    case Dim::kE:
      return heads.E;
    case Dim::kF:
      return config.ffn_at(layer);
    case Dim::kV:
      return config.V;
    case Dim::kExperts:
      return config.experts.count;
    case Dim::kExpertF:
      return config.experts.F;
    case Dim::kInput:
      return config.layer_input;
    case Dim::kInputs:
      return int64_t{config.L} * config.layer_input;
  }
  return 0;
}

// Names by NameStyle. A layer's tensors have its prefix and number before their names.
using Names = std::array<std::string_view, 2>;
constexpr Names kLayerPrefix = {"blk.", "model.layers."};
constexpr Names kEmbedding = {"token_embd", "model.embed_tokens"};
constexpr Names kFinalNorm = {"output_norm", "model.norm"};
constexpr Names kLmHead = {"output", "lm_head"};
constexpr Names kSinks = {"attn_sinks.weight", "self_attn.sinks"};
constexpr Names kLayerEmbedding = {"per_layer_token_embd", "model.embed_tokens_per_layer"};
constexpr Names kLayerProjection = {"per_layer_model_proj", "model.per_layer_model_projection"};
constexpr Names kLayerProjectionNorm = {"per_layer_proj_norm", "model.per_layer_projection_norm"};
constexpr Names kScale = {"layer_output_scale.weight", "layer_scalar"};

constexpr std::string_view kGptOssName = "gpt_oss";

enum class When : uint8_t { kAlways, kQkNorm, kGptOss, kPostNorms, kNoPostNorms };

bool holds(When when, const ModelConfig& config) {
  if (when == When::kQkNorm) return config.qk_norm;
  if (when == When::kAlways) return true;
  if (when == When::kGptOss || config.arch == kGptOssName) return when == When::kGptOss && config.arch == kGptOssName;
  return config.post_norms == (when == When::kPostNorms);
}

struct NormRow {
  Tensor LayerWeights::*member;
  Names names;
  Dim cols;
  When when;
};
constexpr NormRow kNorms[] = {
    {&LayerWeights::attn_norm, {"attn_norm", "input_layernorm"}, Dim::kD, When::kAlways},
    {&LayerWeights::q_norm, {"attn_q_norm", "self_attn.q_norm"}, Dim::kE, When::kQkNorm},
    {&LayerWeights::k_norm, {"attn_k_norm", "self_attn.k_norm"}, Dim::kE, When::kQkNorm},
    // Hugging Face's name of the FFN's own norm says where it is applied: after attention, or before the FFN.
    {&LayerWeights::ffn_norm, {"ffn_norm", "post_attention_layernorm"}, Dim::kD, When::kNoPostNorms},
    {&LayerWeights::ffn_norm, {"ffn_norm", "pre_feedforward_layernorm"}, Dim::kD, When::kPostNorms},
    {&LayerWeights::ffn_norm, {"post_attention_norm", "post_attention_layernorm"}, Dim::kD, When::kGptOss},
    {&LayerWeights::post_attn_norm, {"post_attention_norm", "post_attention_layernorm"}, Dim::kD, When::kPostNorms},
    {&LayerWeights::post_ffn_norm, {"post_ffw_norm", "post_feedforward_layernorm"}, Dim::kD, When::kPostNorms},
};

struct LinearRow {
  LinearWeights LayerWeights::*member;
  Names names;
  Dim rows, cols;
  bool BiasRule::*bias;
};
constexpr LinearRow kLinears[] = {
    {&LayerWeights::q, {"attn_q", "self_attn.q_proj"}, Dim::kHE, Dim::kD, &BiasRule::qkv},
    {&LayerWeights::k, {"attn_k", "self_attn.k_proj"}, Dim::kGE, Dim::kD, &BiasRule::qkv},
    {&LayerWeights::v, {"attn_v", "self_attn.v_proj"}, Dim::kGE, Dim::kD, &BiasRule::qkv},
    {&LayerWeights::o, {"attn_output", "self_attn.o_proj"}, Dim::kD, Dim::kHE, &BiasRule::o},
    {&LayerWeights::gate, {"ffn_gate", "mlp.gate_proj"}, Dim::kF, Dim::kD, &BiasRule::mlp},
    {&LayerWeights::up, {"ffn_up", "mlp.up_proj"}, Dim::kF, Dim::kD, &BiasRule::mlp},
    {&LayerWeights::down, {"ffn_down", "mlp.down_proj"}, Dim::kD, Dim::kF, &BiasRule::mlp},
};

// How a file names the tensors of a sparse layer; {} is an expert's number. Without it, one tensor holds all experts,
// one after the other.
struct ExpertNames {
  NameStyle style;
  std::string_view router, gate, up, down;
};
constexpr ExpertNames kExpertNames[] = {
    {NameStyle::kGguf, "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"},
    {NameStyle::kGguf, "ffn_gate_inp", "ffn_gate.{}", "ffn_up.{}", "ffn_down.{}"},  // files of 2023
    {NameStyle::kHuggingFace, "mlp.gate", "mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj",
     "mlp.experts.{}.down_proj"},
    {NameStyle::kHuggingFace, "block_sparse_moe.gate", "block_sparse_moe.experts.{}.w1",
     "block_sparse_moe.experts.{}.w3", "block_sparse_moe.experts.{}.w2"},
};
// Parts of other families' sparse layers.
constexpr std::string_view kUnknownParts[] = {"ffn_gate_inp.bias",
                                              "exp_probs_b.bias",
                                              "ffn_gate_exps.bias",
                                              "ffn_gate_shexp.weight",
                                              "mlp.shared_expert.gate_proj.weight",
                                              "mlp.gate.e_score_correction_bias"};
// Several linear layers in one tensor, their rows one after the other (phi3).
struct FusedRow {
  Names names;
  std::array<LinearWeights LayerWeights::*, 3> parts;  // null: no more
  bool or_alone = false;                               // GGUF: unfused layers use the name too
};
constexpr FusedRow kFused[] = {
    {{"attn_qkv", "self_attn.qkv_proj"}, {&LayerWeights::q, &LayerWeights::k, &LayerWeights::v}},
    {{"ffn_up", "mlp.gate_up_proj"}, {&LayerWeights::gate, &LayerWeights::up, nullptr}, true},
};

const LinearRow& row_of(LinearWeights LayerWeights::*member) {
  return *std::find_if(std::begin(kLinears), std::end(kLinears),
                       [&](const LinearRow& row) { return row.member == member; });
}

bool is_kv(LinearWeights LayerWeights::*member) { return member == &LayerWeights::k || member == &LayerWeights::v; }

class Binder {
 public:
  explicit Binder(const BindRequest& request) : request_(request), style_(static_cast<size_t>(request.style)) {}

  Result<ModelWeights> bind() {
    ModelWeights weights;
    weights.embedding = take(std::string(kEmbedding[style_]) + ".weight", Dim::kV, Dim::kD, true);
    weights.final_norm = take(std::string(kFinalNorm[style_]) + ".weight", Dim::kOne, Dim::kD, true);
    const std::string head(kLmHead[style_]);
    weights.lm_head.w =
        request_.config.tied_embeddings ? weights.embedding : take(head + ".weight", Dim::kV, Dim::kD, true);
    weights.lm_head.bias = take(head + ".bias", Dim::kOne, Dim::kV, false);
    if (request_.config.layer_input > 0) {
      weights.layer_embedding = take(std::string(kLayerEmbedding[style_]) + ".weight", Dim::kV, Dim::kInputs, true);
      if (status_.ok() && request_.config.layer_input % dtype_info(weights.layer_embedding.dtype).block != 0) {
        status_ = error(Code::kUnsupported, "{}: tensor '{}.weight': a layer's {} elements are no whole blocks of {}",
                        request_.file, kLayerEmbedding[style_], request_.config.layer_input,
                        dtype_info(weights.layer_embedding.dtype).name);
      }
      weights.layer_projection.w = take(std::string(kLayerProjection[style_]) + ".weight", Dim::kInputs, Dim::kD, true);
      weights.layer_projection_norm =
          take(std::string(kLayerProjectionNorm[style_]) + ".weight", Dim::kOne, Dim::kInput, true);
    }
    for (int l = 0; l < request_.config.L && status_.ok(); ++l) weights.layers.push_back(layer(l));
    if (!status_.ok()) return status_.error();
    weights.reordered = std::move(reordered_);
    return weights;
  }

 private:
  LayerWeights layer(int l) {
    const std::string prefix = fmt::format("{}{}.", kLayerPrefix[style_], l);
    layer_ = l;
    LayerWeights layer;
    for (const NormRow& row : kNorms) {
      if (!holds(row.when, request_.config)) continue;
      if (row.member == &LayerWeights::k_norm && !request_.config.writes_kv(l)) continue;
      layer.*row.member = take(prefix + std::string(row.names[style_]) + ".weight", Dim::kOne, row.cols, true);
    }
    const bool sparse = request_.config.sparse(l), beside = request_.config.experts.beside_dense;
    const bool dense = !sparse || beside;
    if (sparse && beside) {
      experts_beside(prefix, layer);
    } else if (sparse && request_.config.arch == kGptOssName && request_.style == NameStyle::kHuggingFace) {
      transposed_experts(prefix, layer);
    } else if (sparse) {
      experts(prefix, layer);
    }
    for (const FusedRow& row : kFused) {
      if (dense || row_of(row.parts[0]).bias != &BiasRule::mlp) take_fused(row, prefix, layer);
    }
    if (request_.config.sinks) {
      layer.sinks = take(prefix + std::string(kSinks[style_]), Dim::kOne, Dim::kH, true);
    }
    if (request_.config.layer_scales) {
      layer.scale = take(prefix + std::string(kScale[style_]), Dim::kOne, Dim::kOne, true);
    }
    if (request_.config.layer_input > 0) layer_input(prefix, layer.input);
    for (const LinearRow& row : kLinears) {
      if ((!dense && row.bias == &BiasRule::mlp) || (layer.*row.member).w) continue;
      if (is_kv(row.member) && !request_.config.writes_kv(l)) continue;
      if (row.member == &LayerWeights::v && request_.config.v_is_k_at(l)) continue;
      const std::string name = prefix + std::string(row.names[style_]);
      LinearWeights& linear = layer.*row.member;
      linear.w = take(name + ".weight", row.rows, row.cols, true);
      linear.bias = take(name + ".bias", Dim::kOne, row.rows, request_.required.*row.bias);
    }
    return layer;
  }

  void experts(const std::string& prefix, LayerWeights& layer) {
    const ExpertNames* names = nullptr;
    const auto named = [](std::string_view pattern, int e) { return fmt::format(fmt::runtime(pattern), e); };
    for (const ExpertNames& row : kExpertNames) {
      if (row.style != request_.style) continue;
      if (!names || request_.table.find(prefix + named(row.gate, 0) + ".weight")) names = &row;
    }
    layer.router.w = take(prefix + std::string(names->router) + ".weight", Dim::kExperts, Dim::kD, true);
    const bool biases = request_.config.experts.biases;
    if (biases) layer.router.bias = take(prefix + std::string(names->router) + ".bias", Dim::kOne, Dim::kExperts, true);
    for (const std::string_view part : kUnknownParts) {
      if (biases && part.starts_with("ffn_")) continue;  // it has these biases
      if (status_.ok() && request_.table.find(prefix + std::string(part))) {
        status_ = error(Code::kUnsupported, "{}: tensor '{}{}' is not supported", request_.file, prefix, part);
      }
    }
    if (!status_.ok()) return;
    layer.experts.resize(static_cast<size_t>(request_.config.experts.count));
    const struct {
      LinearWeights ExpertWeights::*member;
      std::string_view name;
      Dim rows, cols;
    } parts[] = {{&ExpertWeights::gate, names->gate, Dim::kExpertF, Dim::kD},
                 {&ExpertWeights::up, names->up, Dim::kExpertF, Dim::kD},
                 {&ExpertWeights::down, names->down, Dim::kD, Dim::kExpertF}};
    for (const auto& part : parts) {
      const bool stacked = part.name.find("{}") == std::string_view::npos;
      Tensor all;
      if (stacked) all = take(prefix + std::string(part.name) + ".weight", part.rows, part.cols, true, true);
      Tensor bias;
      if (biases) bias = take(prefix + std::string(part.name) + ".bias", Dim::kExperts, part.rows, true);
      for (int e = 0; e < request_.config.experts.count && status_.ok(); ++e) {
        Tensor& w = (layer.experts[e].*part.member).w;
        if (bias) (layer.experts[e].*part.member).bias = row_of_tensor(bias, e);
        if (stacked) {
          w = all;
          w.rows = size_of(part.rows, request_.config, layer_);
          w.data += static_cast<size_t>(e * w.rows) * w.row_bytes();
        } else {
          w = take(prefix + named(part.name, e) + ".weight", part.rows, part.cols, true);
        }
      }
    }
  }

  std::string name_of(const std::string& prefix, const Names& names) const {
    return prefix + std::string(names[style_]);
  }

  void layer_input(const std::string& prefix, LayerInputWeights& to) {
    to.gate.w = take(name_of(prefix, {"inp_gate.weight", "per_layer_input_gate.weight"}), Dim::kInput, Dim::kD, true);
    to.out.w = take(name_of(prefix, {"proj.weight", "per_layer_projection.weight"}), Dim::kD, Dim::kInput, true);
    to.norm = take(name_of(prefix, {"post_norm.weight", "post_per_layer_input_norm.weight"}), Dim::kOne, Dim::kD, true);
  }

  // gemma 4's: gate and up of an expert one after the other; a GGUF may have a tensor of each.
  void experts_beside(const std::string& prefix, LayerWeights& layer) {
    const ExpertConfig& c = request_.config.experts;
    const int64_t D = request_.config.D, F = c.F, count = c.count;
    const auto vector = [&](const Names& names, Dim cols) {
      return take(name_of(prefix, names), Dim::kOne, cols, true);
    };
    BesideWeights& to = layer.beside;
    to.post_dense_norm = vector({"post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"}, Dim::kD);
    to.expert_norm = vector({"pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"}, Dim::kD);
    to.post_expert_norm = vector({"post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"}, Dim::kD);
    to.router_scale = vector({"ffn_gate_inp.scale", "router.scale"}, Dim::kD);
    to.expert_scale = vector({"ffn_down_exps.scale", "router.per_expert_scale"}, Dim::kExperts);
    layer.router.w = take(name_of(prefix, {"ffn_gate_inp.weight", "router.proj.weight"}), Dim::kExperts, Dim::kD, true);
    const std::string both = name_of(prefix, {"ffn_gate_up_exps.weight", "experts.gate_up_proj"});
    const bool apart = request_.style == NameStyle::kGguf && request_.table.find(both) == nullptr;
    const Tensor gate =
        apart ? take(prefix + "ffn_gate_exps.weight", count * F, D, true) : take(both, count * 2 * F, D, true);
    const Tensor up = apart ? take(prefix + "ffn_up_exps.weight", count * F, D, true) : gate;
    const Tensor down = take(name_of(prefix, {"ffn_down_exps.weight", "experts.down_proj"}), count * D, F, true);
    if (!status_.ok()) return;
    for (int64_t e = 0; e < count; ++e) {
      ExpertWeights& expert = layer.experts.emplace_back();
      expert.gate.w = rows_of_tensor(gate, apart ? e * F : 2 * e * F, F);
      expert.up.w = rows_of_tensor(up, apart ? e * F : (2 * e + 1) * F, F);
      expert.down.w = rows_of_tensor(down, e * D, D);
    }
  }

  static Tensor rows_of_tensor(const Tensor& all, int64_t first, int64_t count) {
    return {all.data + static_cast<size_t>(first) * all.row_bytes(), all.dtype, count, all.cols};
  }
  static Tensor row_of_tensor(const Tensor& all, int64_t row) {
    return {all.data + static_cast<size_t>(row) * all.row_bytes(), all.dtype, 1, all.cols};
  }

  // rows x cols elements: blocks of 32 as 16 bytes each, and a byte of scale for each block.
  Mxfp4Matrix take_mxfp4(const std::string& name, int64_t rows, int64_t cols) {
    const auto bytes_of = [&](const std::string& tensor, int64_t want) -> const std::byte* {
      const StoredTensor* stored = request_.table.find(tensor);
      if (!status_.ok()) return nullptr;
      if (cols % 32 != 0) {
        status_ =
            error(Code::kUnsupported, "{}: tensor '{}': MXFP4 with rows of {} elements, which is no multiple of 32",
                  request_.file, tensor, cols);
        return nullptr;
      }
      if (!stored || stored->type_name != "U8" || static_cast<int64_t>(stored->bytes) != want) {
        status_ = error(Code::kCorrupt, "{}: tensor '{}' is missing, or it is not {} bytes of U8 for {} x {} in MXFP4",
                        request_.file, tensor, want, rows, cols);
        return nullptr;
      }
      return stored->data;
    };
    return {bytes_of(name + "_blocks", rows * cols / 2), bytes_of(name + "_scales", rows * cols / 32), rows, cols};
  }

  // gpt-oss in safetensors: see reordered_experts.h.
  void transposed_experts(const std::string& prefix, LayerWeights& layer) {
    const ExpertConfig& c = request_.config.experts;
    const int64_t D = request_.config.D, count = c.count;
    layer.router.w = take(prefix + "mlp.router.weight", Dim::kExperts, Dim::kD, true);
    layer.router.bias = take(prefix + "mlp.router.bias", Dim::kOne, Dim::kExperts, true);
    const std::string experts = prefix + "mlp.experts.";
    GptOssExperts stored;
    stored.gate_up_bias = take(experts + "gate_up_proj_bias", count, 2 * int64_t{c.F}, true);
    stored.down_bias = take(experts + "down_proj_bias", count, D, true);
    if (request_.table.find(experts + "gate_up_proj_blocks") != nullptr) {
      stored.gate_up_blocks = take_mxfp4(experts + "gate_up_proj", count * 2 * c.F, D);
      stored.down_blocks = take_mxfp4(experts + "down_proj", count * D, c.F);
    } else {
      stored.gate_up = take(experts + "gate_up_proj", count * D, 2 * int64_t{c.F}, true);
      stored.down = take(experts + "down_proj", count * c.F, D, true);
    }
    if (!status_.ok()) return;
    reordered_.push_back(reorder_experts(stored, c.count, layer.experts));
  }

  // Reads the fused tensor if the first part has no tensor of its own.
  void take_fused(const FusedRow& fused, const std::string& prefix, LayerWeights& layer) {
    const std::string name = prefix + std::string(fused.names[style_]);
    const LinearRow& first = row_of(fused.parts[0]);
    if (request_.table.find(prefix + std::string(first.names[style_]) + ".weight") != nullptr) return;
    int64_t rows = 0;
    for (const auto part : fused.parts) rows += part ? size_of(row_of(part).rows, request_.config, layer_) : 0;
    const StoredTensor* stored = request_.table.find(name + ".weight");
    if (stored == nullptr || (fused.or_alone && stored->rows != rows)) return;
    const Tensor whole = take(name + ".weight", rows, size_of(first.cols, request_.config, layer_), true);
    const Tensor bias = take(name + ".bias", 1, rows, false);
    if (bias && bias.dtype != DType::kF32) {
      status_ = error(Code::kUnsupported, "{}: tensor '{}.bias' is not F32", request_.file, name);
    }
    if (!status_.ok()) return;
    int64_t from = 0;
    for (const auto part : fused.parts) {
      if (!part) continue;
      const int64_t count = size_of(row_of(part).rows, request_.config, layer_);
      LinearWeights& linear = layer.*part;
      linear.w = {whole.data + static_cast<size_t>(from) * whole.row_bytes(), whole.dtype, count, whole.cols};
      if (bias) linear.bias = {bias.data + static_cast<size_t>(from) * sizeof(float), bias.dtype, 1, count};
      from += count;
    }
  }

  // of_experts: the tensor holds one matrix per expert.
  Tensor take(const std::string& name, Dim rows_dim, Dim cols_dim, bool required, bool of_experts = false) {
    const int64_t rows = size_of(rows_dim, request_.config, layer_) * (of_experts ? request_.config.experts.count : 1);
    return take(name, rows, size_of(cols_dim, request_.config, layer_), required);
  }

  Tensor take(const std::string& name, int64_t rows, int64_t cols, bool required) {
    if (!status_.ok()) return {};
    const StoredTensor* stored = request_.table.find(name);
    if (!stored) {
      if (required) {
        status_ = error(Code::kCorrupt, "{}: tensor '{}' is missing; a {} model with {} layers needs it", request_.file,
                        name, request_.config.arch, request_.config.L);
      }
      return {};
    }
    if (stored->rows != rows || stored->cols != cols) {
      status_ = error(Code::kCorrupt, "{}: tensor '{}' is {} x {}; the configuration says {} x {} (rows x columns)",
                      request_.file, name, stored->rows, stored->cols, rows, cols);
      return {};
    }
    if (!stored->readable) {
      status_ = error(Code::kUnsupported, "{}: tensor '{}' has type {}; this build reads {}", request_.file, name,
                      stored->type_name,
                      request_.style == NameStyle::kGguf ? readable_gguf_types() : readable_safetensors_types());
      return {};
    }
    return stored->view();
  }

  const BindRequest& request_;
  const size_t style_;
  int layer_ = 0;  // whose tensors are being taken
  std::vector<Reordered> reordered_;
  Status status_;
};

}  // namespace

bool TensorTable::add(StoredTensor tensor) {
  std::string name = tensor.name;
  return tensors_.emplace(std::move(name), std::move(tensor)).second;
}

const StoredTensor* TensorTable::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

size_t TensorTable::bytes() const {
  size_t sum = 0;
  for (const auto& [name, tensor] : tensors_) sum += tensor.bytes;
  return sum;
}

Result<ModelWeights> bind_weights(const BindRequest& request) { return Binder(request).bind(); }

std::string printable(std::string_view text, size_t max_bytes) {
  std::string out;
  for (const char c : text.substr(0, max_bytes)) {
    if (c >= 0x20 && c < 0x7f && c != '\\') {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  if (text.size() > max_bytes) out += fmt::format("... ({} bytes)", text.size());
  return out;
}

}  // namespace kvilt
