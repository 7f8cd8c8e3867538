#include "model/read_gemma4.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/read_config.h"
#include "model/read_experts.h"
#include "model/read_rope.h"

namespace kvilt {
namespace {

constexpr int64_t kMaxLayerInput = 1 << 12;
// Transformers' defaults.
constexpr int kGlobalHeadDim = 512, kDefaultLocalWindow = 512, kPeriod = 6, kLayerInput = 256,
              kLayerInputVocab = 262144;
constexpr double kTheta = 1e6, kLocalTheta = 1e4, kRotatedShare = 0.25;
constexpr double kNotRotated = 1e20;  // a divisor of a GGUF from which on a pair stands still; converters write 1e30

// One kind of layer.
struct LayerKind {
  KvHeads heads;
  double theta = 0, factor = 1;
  double share = 1;              // of the pairs of a head that rotate: the first ones
  std::vector<double> divisors;  // per pair; empty: none
};

struct Gemma4 {
  LayerKind local, global;
  std::vector<uint8_t> is_local;
  int window = 0;
};

void refuse(Fields& fields, const std::string& what) {
  fields.fail(error(Code::kUnsupported, "{}: gemma 4: {} is not supported", fields.where(), what));
}

void gemma4_arithmetic(ModelConfig& model) {
  model.gate = Gate::kGeluTanh;
  model.post_norms = true;
  model.v_norm = true;
  model.embedding_scale = std::sqrt(static_cast<float>(model.D));
  model.attention_scale = 1;
}

// The angles of one kind of layer, for heads as wide as the widest: each half of a head is widened with elements that
// are zero, so the pair (i, i + E/2) of the layer's own head stays a pair.
Result<RopeConfig> rope_of(const LayerKind& kind, int widest, const std::string& where) {
  RopeSettings s;
  s.head_dim = s.rotary_dim = kind.heads.E;
  s.theta = kind.theta;
  s.factor = kind.factor;
  if (s.factor != 1) s.scaling = RopeScaling::kLinear;
  s.divisors = kind.divisors;
  KVILT_ASSIGN(RopeConfig rope, make_rope(s, where));
  const auto rotated = static_cast<size_t>(kind.share * kind.heads.E / 2);
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
    const bool still = i >= rotated || (!kind.divisors.empty() && kind.divisors[i] >= kNotRotated);
    if (still) rope.inv_freq[i] = 0;
  }
  rope.rotary_dim = widest;
  rope.inv_freq.resize(static_cast<size_t>(widest / 2), 0);
  return rope;
}

Status check_kind(const ModelConfig& model, KvHeads heads, const std::string& where) {
  if (heads.G > model.H || model.H % heads.G != 0)
    return error(Code::kCorrupt, "{}: {} query heads are no multiple of {} KV heads", where, model.H, heads.G);
  if (heads.E % 2 != 0) return error(Code::kCorrupt, "{}: a head size of {} is not even", where, heads.E);
  if (model.G % heads.G != 0)
    return error(Code::kUnsupported, "{}: gemma 4: layers with {} and with {} KV heads are not supported", where,
                 heads.G, model.G);
  return {};
}

// Into the model: windows, heads and RoPEs by layer.
Status set_kinds(const Gemma4& from, ModelConfig& model, const std::string& where) {
  model.G = std::max(from.local.heads.G, from.global.heads.G);
  model.E = std::max(from.local.heads.E, from.global.heads.E);
  for (const KvHeads heads : {from.local.heads, from.global.heads}) KVILT_TRY(check_kind(model, heads, where));
  const bool differ = from.local.heads != from.global.heads;
  for (const uint8_t local : from.is_local) {
    model.window.push_back(local ? from.window : -1);
    if (differ) model.heads.push_back(local ? from.local.heads : from.global.heads);
  }
  model.local_layers = from.is_local;
  KVILT_ASSIGN(model.rope, rope_of(from.global, model.E, where));
  KVILT_ASSIGN(model.local_rope, rope_of(from.local, model.E, where));
  return {};
}

// The last `shared` layers read the KV of the last layer of their kind before them.
void share_kv(Fields& fields, int64_t shared, const std::vector<uint8_t>& is_local, ModelConfig& model) {
  if (shared == 0) return;
  const int64_t own = std::ssize(is_local) - shared;
  for (size_t l = static_cast<size_t>(std::max<int64_t>(own, 0)); l < is_local.size(); ++l) {
    int64_t source = own - 1;
    while (source >= 0 && is_local[source] != is_local[l]) --source;
    if (source < 0) {
      fields.fail(error(Code::kCorrupt, "{}: layer {} reads the KV of an earlier layer of its kind, and there is none",
                        fields.where(), l));
      return;
    }
    model.kv_readers.push_back(static_cast<uint16_t>(source));
  }
  for (size_t l = static_cast<size_t>(own); l < is_local.size() && !model.v_is_k.empty(); ++l) model.v_is_k[l] = 0;
}

// ---- config.json --------------------------------------------------------------------------------------------------

void read_hf_rope(Fields& fields, const nlohmann::json& config, const char* name, LayerKind& kind) {
  const auto all = config.find("rope_parameters");
  if (all == config.end() || all->is_null()) return;  // the defaults that it has
  const auto one = all->is_object() ? all->find(name) : all->end();
  if (!all->is_object() || one == all->end() || !one->is_object()) {
    fields.fail(error(Code::kCorrupt, "{}: 'rope_parameters' must have an object '{}'", fields.where(), name));
    return;
  }
  Fields rope(*one, fields.where() + ": RoPE settings of " + name);
  kind.theta = rope.number_or("rope_theta", kind.theta, 1, kMaxTheta);
  const std::string type = rope.text_or("rope_type", "default");
  kind.share = rope.number_or("partial_rotary_factor", 1, 0, 1);
  kind.factor = rope.number_or("factor", 1, 1e-3, kMaxFactor);
  if (!rope.status().ok()) fields.fail(rope.status().error());
  if (type != "default" && type != "proportional") refuse(fields, "RoPE type '" + printable(type) + "'");
  if (type == "default" && (kind.share != 1 || kind.factor != 1))
    refuse(fields, "RoPE type 'default' with a factor or a partial_rotary_factor");
}

// What this build does not compute, and what would not be a text model's.
void refuse_hf_others(Fields& fields) {
  const std::string act = fields.text_or("hidden_activation", "gelu_pytorch_tanh");
  if (act != "gelu_pytorch_tanh") refuse(fields, "hidden_activation '" + printable(act) + "'");
  if (const std::string look = fields.text_or("use_bidirectional_attention", "vision"); look != "vision")
    refuse(fields, "use_bidirectional_attention '" + printable(look) + "'");
}

// The heads of layers that differ from the rest, as Transformers saves them. Those of one kind have to be alike.
void read_layer_heads(Fields& fields, const nlohmann::json& layers, Gemma4& out) {
  const auto wrong = [&](const std::string& what) {
    fields.fail(error(Code::kCorrupt, "{}: 'per_layer_config' {}", fields.where(), what));
  };
  if (!layers.is_object()) return wrong("must be an object of layers");
  std::vector<KvHeads> heads(out.is_local.size(), out.local.heads);
  for (const auto& [key, one] : layers.items()) {
    size_t l = 0;
    const auto [end, failed] = std::from_chars(key.data(), key.data() + key.size(), l);
    if (failed != std::errc() || end != key.data() + key.size() || l >= heads.size() || !one.is_object())
      return wrong(fmt::format("has '{}', which is no layer's object", printable(key)));
    for (const auto& [name, value] : one.items()) {
      if (name != "head_dim" && name != "num_key_value_heads")
        return refuse(fields, "per_layer_config with '" + printable(name) + "'");
    }
    Fields own(one, fmt::format("{}: per_layer_config of layer {}", fields.where(), l));
    heads[l].E = static_cast<int>(own.integer_or("head_dim", heads[l].E, 2, kMaxHeadDim));
    heads[l].G = static_cast<int>(own.integer_or("num_key_value_heads", heads[l].G, 1, kMaxHeads));
    if (!own.status().ok()) return fields.fail(own.status().error());
  }
  for (const uint8_t local : {0, 1}) {
    const auto first = std::ranges::find(out.is_local, local);
    if (first == out.is_local.end()) continue;
    const KvHeads kind = heads[static_cast<size_t>(first - out.is_local.begin())];
    (local ? out.local : out.global).heads = kind;
    for (size_t l = 0; l < heads.size(); ++l) {
      if (out.is_local[l] == local && heads[l] != kind)
        return refuse(fields, "per_layer_config with layers of one kind that differ");
    }
  }
}

// Experts beside the dense FFN, in every layer.
ExpertConfig experts_of(int64_t count, int64_t top_k, int64_t F, int L) {
  ExpertConfig out;
  out.count = static_cast<int>(count);
  out.top_k = static_cast<int>(top_k);
  out.F = static_cast<int>(F);
  out.renormalise = out.beside_dense = true;
  out.sparse.assign(static_cast<size_t>(L), 1);
  return out;
}

void check_experts(Fields& fields, const ExpertConfig& experts) {
  if (experts.top_k > experts.count)
    fields.fail(error(Code::kCorrupt, "{}: {} experts for each token, but there are {}", fields.where(), experts.top_k,
                      experts.count));
}

void read_hf_beside(Fields& fields, ModelConfig& model) {
  if (!fields.flag_or("enable_moe_block", false)) return;
  const int64_t count = fields.integer("num_experts", 1, kMaxExperts);
  const int64_t top_k = fields.integer("top_k_experts", 1, kMaxExperts);
  model.experts = experts_of(count, top_k, fields.integer("moe_intermediate_size", 1, kMaxWidth), model.L);
  check_experts(fields, model.experts);
}

// What each layer gets of its row's token.
void read_hf_layer_input(Fields& fields, const nlohmann::json& config, ModelConfig& model) {
  const auto width = config.find("hidden_size_per_layer_input");
  if (width != config.end() && width->is_null()) return;  // none, unlike a missing one
  model.layer_input =
      static_cast<int>(fields.integer_or("hidden_size_per_layer_input", kLayerInput, 0, kMaxLayerInput));
  if (model.layer_input > 0 &&
      fields.integer_or("vocab_size_per_layer_input", kLayerInputVocab, 1, INT32_MAX) != model.V)
    refuse(fields, "a vocab_size_per_layer_input other than vocab_size");
}

}  // namespace

Status read_hf_gemma4(Fields& fields, const nlohmann::json& config, ModelConfig& model) {
  refuse_hf_others(fields);
  gemma4_arithmetic(model);
  model.layer_scales = true;
  model.final_softcap = static_cast<float>(fields.number_or("final_logit_softcapping", 0, 0, kMaxFactor));
  read_hf_beside(fields, model);
  read_hf_layer_input(fields, config, model);
  const bool k_eq_v = fields.flag_or("attention_k_eq_v", false);
  Gemma4 out;
  out.window = static_cast<int>(fields.integer_or("sliding_window", kDefaultLocalWindow, 1, kMaxContext));
  out.is_local = hf_local_layers(fields, config, model.L, kPeriod);
  out.is_local.back() = 0;
  out.local.heads = out.global.heads = {model.G, model.E};
  const auto layers = config.find("per_layer_config");
  const bool by_layers = layers != config.end() && !layers->is_null();
  if (by_layers)
    read_layer_heads(fields, *layers, out);
  else
    out.global.heads.E = static_cast<int>(fields.integer_or("global_head_dim", kGlobalHeadDim, 2, kMaxHeadDim));
  // Transformers heeds it only there.
  if (k_eq_v && !by_layers)
    out.global.heads.G = static_cast<int>(fields.integer_or("num_global_key_value_heads", model.G, 1, kMaxHeads));
  for (const uint8_t local : out.is_local) {
    if (k_eq_v) model.v_is_k.push_back(local ? 0 : 1);
  }
  const int64_t shared = fields.integer_or("num_kv_shared_layers", 0, 0, model.L);
  share_kv(fields, shared, out.is_local, model);
  if (shared > 0 && fields.flag_or("use_double_wide_mlp", false)) {
    model.ffn_widths.assign(static_cast<size_t>(model.L), model.F);
    for (int l = model.kv_layers(); l < model.L; ++l) model.ffn_widths[l] *= 2;
  }
  out.local.theta = kLocalTheta;
  out.global.theta = kTheta;
  out.global.share = kRotatedShare;
  read_hf_rope(fields, config, "sliding_attention", out.local);
  read_hf_rope(fields, config, "full_attention", out.global);
  KVILT_TRY(fields.status());
  return set_kinds(out, model, fields.where());
}

// ---- GGUF ---------------------------------------------------------------------------------------------------------

namespace {

// One whole number for each layer: a list, or a number that stands for all.
std::vector<int64_t> by_layer(Fields& fields, const GgufFile& gguf, const std::string& key, int L, int64_t high) {
  const GgufValue* value = gguf.find("gemma4." + key);
  std::vector<int64_t> out;
  if (value && value->type == GgufType::kArray && value->count == static_cast<uint64_t>(L)) {
    out = value->as_ints().value_or(out);
  } else if (const auto one = value ? value->as_int() : std::nullopt) {
    out.assign(static_cast<size_t>(L), *one);
  }
  const auto fits = [&](int64_t x) { return x >= 1 && x <= high; };
  if (out.empty() || !std::ranges::all_of(out, fits)) {
    fields.fail(error(Code::kCorrupt, "{}: 'gemma4.{}' must be a whole number from 1 to {}, or a list of {} of them",
                      fields.where(), key, high, L));
    out.assign(static_cast<size_t>(L), 1);
  }
  return out;
}

std::vector<uint8_t> gguf_local_layers(Fields& fields, const GgufFile& gguf, int L) {
  const char* key = "gemma4.attention.sliding_window_pattern";
  const GgufValue* value = gguf.find(key);
  if (value && value->count == static_cast<uint64_t>(L)) {
    if (auto list = value->as_bools()) return *list;
  }
  fields.fail(error(Code::kCorrupt, "{}: '{}' must be a list of {} times true or false", fields.where(), key, L));
  return std::vector<uint8_t>(static_cast<size_t>(L), 0);
}

// The KV heads of each kind of layer.
void read_kv_heads(Fields& fields, const GgufFile& gguf, int L, Gemma4& out) {
  const std::vector<int64_t> heads = by_layer(fields, gguf, "attention.head_count_kv", L, kMaxHeads);
  for (size_t l = 0; l < heads.size(); ++l) {
    int& of_kind = (out.is_local[l] ? out.local : out.global).heads.G;
    if (of_kind != 0 && of_kind != heads[l])
      refuse(fields, "another number of KV heads in layers of one kind (attention.head_count_kv)");
    of_kind = static_cast<int>(heads[l]);
  }
  for (LayerKind* kind : {&out.local, &out.global})
    kind->heads.G = std::max(kind->heads.G, 1);  // a kind that has no layer
}

void refuse_gguf_others(Fields& fields, const Gemma4& from) {
  if (const int64_t gate = fields.integer_or("expert_gating_func", 1, 0, INT32_MAX); gate > 1)
    refuse(fields, "a gate other than softmax (expert_gating_func)");
  if (!fields.flag_or("expert_weights_norm", true)) refuse(fields, "expert_weights_norm off");
  for (const char* key : {"attention.value_length_swa", "rope.dimension_count_swa"}) {
    if (fields.integer_or(key, from.local.heads.E, 0, kMaxHeadDim) != from.local.heads.E) refuse(fields, key);
  }
  if (fields.integer_or("rope.dimension_count", from.global.heads.E, 0, kMaxHeadDim) != from.global.heads.E)
    refuse(fields, "rope.dimension_count that is not the head size");
  if (const std::string kind = fields.text_or("rope.scaling.type", "none"); kind != "none")
    refuse(fields, "rope.scaling.type '" + printable(kind) + "'");
  if (gguf_rope_factor(fields) != 1) refuse(fields, "a rope.scaling.factor");
  if (gguf_attention_factor(fields) != 1) refuse(fields, "a rope.scaling.attn_factor");
  if (fields.has("attn_logit_softcapping")) refuse(fields, "attn_logit_softcapping");
}

void read_gguf_beside(Fields& fields, ModelConfig& model) {
  const int64_t count = fields.integer_or("expert_count", 0, 0, kMaxExperts);
  if (count == 0) return;
  const int64_t top_k = fields.integer("expert_used_count", 1, kMaxExperts);
  model.experts = experts_of(count, top_k, fields.integer("expert_feed_forward_length", 1, kMaxWidth), model.L);
  check_experts(fields, model.experts);
}

}  // namespace

Status read_gguf_gemma4(Fields& fields, const GgufFile& gguf, ModelConfig& model) {
  gemma4_arithmetic(model);
  model.layer_scales = gguf.tensors.find("blk.0.layer_output_scale.weight") != nullptr;
  model.final_softcap = static_cast<float>(fields.number_or("final_logit_softcapping", 0, 0, kMaxFactor));
  const std::vector<int64_t> widths = by_layer(fields, gguf, "feed_forward_length", model.L, kMaxWidth);
  model.F = static_cast<int>(widths[0]);
  const bool differ = std::ranges::any_of(widths, [&](int64_t F) { return F != model.F; });
  if (differ) model.ffn_widths.assign(widths.begin(), widths.end());
  read_gguf_beside(fields, model);
  model.layer_input = static_cast<int>(fields.integer_or("embedding_length_per_layer_input", 0, 0, kMaxLayerInput));
  Gemma4 out;
  out.window = static_cast<int>(fields.integer("attention.sliding_window", 1, kMaxContext));
  out.is_local = gguf_local_layers(fields, gguf, model.L);
  read_kv_heads(fields, gguf, model.L, out);
  out.global.heads.E = model.E;
  out.local.heads.E = static_cast<int>(fields.integer("attention.key_length_swa", 2, kMaxHeadDim));
  refuse_gguf_others(fields, out);
  out.global.theta = fields.number_or("rope.freq_base", kTheta, 1, kMaxTheta);
  out.local.theta = fields.number_or("rope.freq_base_swa", kLocalTheta, 1, kMaxTheta);
  out.global.divisors = gguf_divisors(fields, gguf, "rope_freqs.weight");
  for (int l = 0; l < model.L; ++l)
    model.v_is_k.push_back(!out.is_local[l] && !gguf.tensors.find(fmt::format("blk.{}.attn_v.weight", l)));
  share_kv(fields, fields.integer_or("attention.shared_kv_layers", 0, 0, model.L), out.is_local, model);
  KVILT_TRY(fields.status());
  return set_kinds(out, model, fields.where());
}

}  // namespace kvilt
