#include "model/read_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>
#include <type_traits>

#include "base/error.h"
#include "model/fields.h"
#include "model/read_experts.h"
#include "model/read_gemma4.h"
#include "model/read_rope.h"
#include "model/recurrent.h"
#include "model/rope.h"
#include "model/text_part.h"

namespace kvilt {
namespace {

constexpr int64_t kMaxVocab = 1 << 24;                          // as kMaxWidth
constexpr int kDefaultWindow = 4096, kDefaultDenseLayers = 28;  // Transformers' defaults

// Which layers of a Hugging Face model have a window.
enum class WindowRule : uint8_t {
  kNone,
  kAll,          // all layers, unless sliding_window is null
  kAllIfNamed,   // the same, but none if it is missing
  kAllByFlag,    // all layers, if use_sliding_window
  kAlternating,  // layers 0, 2, 4, ..., or those that layer_types names
  kByLayer,      // if use_sliding_window: the layers from max_window_layers on, or those that layer_types names
};

struct Architecture {
  std::string_view name;  // model_type, and general.architecture unless gguf_name is given
  RopePairs gguf_pairs;   // Hugging Face's are always halves
  bool qk_norm;
  bool qkv_bias;  // always there
  WindowRule windows;
  ExpertRule experts = ExpertRule::kNone;
  std::string_view gguf_name = {};
  // What a config.json means that leaves rms_norm_eps or rope_theta out: Transformers' defaults (gemma's bases: below).
  double eps = 1e-6, theta = 10000;
};
constexpr Architecture kArchitectures[] = {
    {"llama", RopePairs::kInterleaved, false, false, WindowRule::kNone},
    {"mistral", RopePairs::kInterleaved, false, false, WindowRule::kAll, ExpertRule::kNone, "llama"},
    {"mixtral", RopePairs::kInterleaved, false, false, WindowRule::kAllIfNamed, ExpertRule::kMixtral, "llama", 1e-5,
     1e6},
    {"qwen2", RopePairs::kHalves, false, true, WindowRule::kByLayer},
    {"qwen3", RopePairs::kHalves, true, false, WindowRule::kByLayer},
    {"qwen3_moe", RopePairs::kHalves, true, false, WindowRule::kAllByFlag, ExpertRule::kQwen3Moe, "qwen3moe"},
    {"gpt_oss", RopePairs::kHalves, false, true, WindowRule::kAlternating, ExpertRule::kGptOss, "gpt-oss", 1e-5,
     150000},
    {"phi3", RopePairs::kHalves, false, false, WindowRule::kAllIfNamed, ExpertRule::kNone, {}, 1e-5},
    {"gemma3", RopePairs::kHalves, true, false, WindowRule::kNone},  // its windows: read_hf_gemma3
    {"gemma4", RopePairs::kHalves, true, false, WindowRule::kNone},  // its windows: read_gemma4.h
};

// File: config.json, or a GGUF.
template <class File>
Result<const Architecture*> find_architecture(const std::string& name, const File& file, const std::string& where) {
  std::string known;
  for (const Architecture& row : kArchitectures) {
    const bool other = std::is_same_v<File, GgufFile> && !row.gguf_name.empty();
    if ((other ? row.gguf_name : row.name) == name) return &row;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  if (const std::string_view recurrent = recurrent_layers(name, file); !recurrent.empty()) {
    return error(
        Code::kUnsupported,
        "{}: architecture '{}' has recurrent layers ({}), whose state is of all the text before it and cannot be "
        "put together from known pieces; see docs/architectures.md#recurrent-layers. This build runs {}",
        where, printable(name), recurrent, known);
  }
  return error(Code::kUnsupported, "{}: architecture '{}'; this build runs {}", where, printable(name), known);
}

Status check_heads(const ModelConfig& config, const std::string& where) {
  if (config.G > config.H || config.H % config.G != 0) {
    return error(Code::kCorrupt, "{}: {} query heads are no multiple of {} KV heads", where, config.H, config.G);
  }
  if (config.E % 2 != 0 || config.E < 2)
    return error(Code::kCorrupt, "{}: a head size of {} is not even", where, config.E);
  return {};
}

// E if a file does not state it.
int head_dim(Fields& fields, const char* key, const ModelConfig& config) {
  const bool divides = config.H > 0 && config.D % config.H == 0 && config.D >= config.H;
  if (!fields.has(key) && !divides) {
    fields.fail(error(Code::kCorrupt, "{}: no head size ('{}'), and width {} is no multiple of {} heads",
                      fields.where(), key, config.D, config.H));
    return 2;
  }
  return static_cast<int>(fields.integer_or(key, divides ? config.D / config.H : 2, 2, kMaxHeadDim));
}

// ---- gpt-oss ------------------------------------------------------------------------------------------------------

constexpr double kGptOssLimit = 7, kGptOssSlope = 1.702;  // those of Activation::kClampedSwiglu

void gpt_oss_arithmetic(ModelConfig& model) {
  model.gate = Gate::kClampedSwiglu;
  model.sinks = true;
}

// As OpenAI's own files say it; the tensors' names tell which are in MXFP4.
bool has_mxfp4_experts(const nlohmann::json& config, const Architecture& arch) {
  const auto& quantised = config.at("quantization_config");
  if (arch.experts != ExpertRule::kGptOss || !quantised.is_object()) return false;
  const auto method = quantised.find("quant_method");
  return method != quantised.end() && *method == "mxfp4";
}

void check_hf_gpt_oss(Fields& fields) {
  if (fields.number_or("swiglu_limit", kGptOssLimit, 0, kMaxFactor) != kGptOssLimit ||
      fields.number_or("swiglu_alpha", kGptOssSlope, 0, kMaxFactor) != kGptOssSlope) {
    fields.fail(error(Code::kUnsupported,
                      "{}: a swiglu_limit other than {} or a swiglu_alpha other than {} is not supported",
                      fields.where(), kGptOssLimit, kGptOssSlope));
  }
}

// Settings that change the arithmetic of a Hugging Face model in ways that this build does not support.
void refuse_hf_extras(Fields& fields, const nlohmann::json& config, const Architecture& arch) {
  const auto refuse = [&](const std::string& what) {
    fields.fail(error(Code::kUnsupported, "{}: {} is not supported", fields.where(), what));
  };
  if (const std::string act = fields.text_or("hidden_act", "silu"); act != "silu" && !arch.name.starts_with("gemma")) {
    refuse("hidden_act '" + printable(act) + "'");
  }
  if (fields.has("quantization_config") && !has_mxfp4_experts(config, arch))
    refuse("a quantised checkpoint (quantization_config); use GGUF");
  if (arch.name == "gpt_oss") check_hf_gpt_oss(fields);
}

// Each layer's window, as Transformers decides it for the family; empty: none has one.
std::vector<int> hf_windows(Fields& fields, const nlohmann::json& config, const Architecture& arch, int L) {
  const auto fail = [&](Code code, const std::string& what) {
    fields.fail(error(code, "{}: {}", fields.where(), what));
    return std::vector<int>{};
  };
  const bool alternating = arch.windows == WindowRule::kAlternating;
  const bool named_only = arch.windows == WindowRule::kAllIfNamed || alternating;
  const bool by_flag = arch.windows != WindowRule::kAll && !named_only;
  const bool by_default = !config.contains("sliding_window") && !named_only;
  const bool named = by_default || fields.has("sliding_window");  // null: none
  if (alternating && !named)
    return fail(Code::kUnsupported, fmt::format("{} without sliding_window is not supported", arch.name));
  const bool on = named && (!by_flag || fields.flag_or("use_sliding_window", false));
  if (on && arch.windows == WindowRule::kNone) return fail(Code::kUnsupported, "use_sliding_window is not supported");
  const int window = on ? static_cast<int>(fields.integer_or("sliding_window", kDefaultWindow, 1, kMaxContext)) : -1;
  std::vector<int> out(static_cast<size_t>(L), window);
  if (arch.windows == WindowRule::kByLayer) {
    const int64_t without = fields.integer_or("max_window_layers", kDefaultDenseLayers, 0, kMaxLayers);
    std::fill_n(out.begin(), std::min<int64_t>(without, L), -1);
  }
  for (size_t l = 1; alternating && l < out.size(); l += 2) out[l] = -1;
  const auto types = config.find("layer_types");
  if (types == config.end() || types->is_null()) return on ? out : std::vector<int>{};
  if (!types->is_array() || types->size() != out.size())
    return fail(Code::kCorrupt, fmt::format("'layer_types' must be a list of {} texts", L));
  for (size_t l = 0; l < out.size(); ++l) {
    const bool slides = (*types)[l] == "sliding_attention";
    if (!slides && (*types)[l] != "full_attention")
      return fail(Code::kUnsupported, "a layer type other than full_attention and sliding_attention (layer_types)");
    if (slides && window < 0) return fail(Code::kCorrupt, "'layer_types' names sliding layers, but there is no window");
    if (arch.windows == WindowRule::kByLayer || alternating) out[l] = slides ? window : -1;
    if (slides != (out[l] >= 0)) return fail(Code::kUnsupported, "'layer_types' contradicts sliding_window");
  }
  return on ? out : std::vector<int>{};
}

// ---- gemma3 -------------------------------------------------------------------------------------------------------

constexpr int kGemmaHeadDim = 256, kGemmaScalar = 256, kGemmaWindow = 4096;  // Transformers' defaults
constexpr int kGemmaPeriod = 6;                                              // every sixth layer is global
constexpr double kGemmaTheta = 1e6, kGemmaLocalTheta = 1e4;
constexpr int kGemma27BLayers = 62;  // the one size that does not scale scores by the head size; a GGUF does not say it

// Defaults for what no file states.
void gemma3_arithmetic(ModelConfig& model) {
  model.gate = Gate::kGeluTanh;
  model.post_norms = true;
  model.embedding_scale = std::sqrt(static_cast<float>(model.D));
}

float attention_scale_of(double scalar) { return static_cast<float>(1 / std::sqrt(scalar)); }

// Local layers have a window and a RoPE of their own.
void set_local_layers(ModelConfig& model, std::vector<uint8_t> local, int window) {
  for (const uint8_t is_local : local) model.window.push_back(is_local ? window : -1);
  model.local_layers = std::move(local);
}

std::vector<uint8_t> every_nth_is_global(int L, int64_t n) {
  std::vector<uint8_t> local;
  for (int64_t l = 1; l <= L; ++l) local.push_back(l % n != 0);
  return local;
}

// The default RoPE, for local layers next to a scaled one.
RopeSettings unscaled(const RopeSettings& from) {
  RopeSettings s;
  s.pairs = from.pairs;
  s.head_dim = from.head_dim;
  s.rotary_dim = from.rotary_dim;
  return s;
}

// Kernels take one number of rotated elements for all layers, and a sequence has one length for both kinds.
void check_two_ropes(Fields& fields, const RopeSettings& global, const RopeSettings& local) {
  const auto refuse = [&](const std::string& what) {
    fields.fail(error(Code::kUnsupported, "{}: gemma 3: {} is not supported", fields.where(), what));
  };
  if (local.rotary_dim != global.rotary_dim) {
    refuse(
        fmt::format("a RoPE of local layers that rotates {} elements of a head where that of global ones rotates {} "
                    "(partial_rotary_factor)",
                    local.rotary_dim, global.rotary_dim));
  }
  for (const RopeSettings* s : {&global, &local}) {
    if (s->scaling == RopeScaling::kDynamic || s->scaling == RopeScaling::kLongRope)
      refuse("a RoPE that depends on the length (dynamic, longrope)");
  }
}

void read_hf_gemma3(Fields& fields, const nlohmann::json& config, ModelConfig& model) {
  const auto refuse = [&](const std::string& what) {
    fields.fail(error(Code::kUnsupported, "{}: {} is not supported", fields.where(), what));
  };
  gemma3_arithmetic(model);
  model.norms_plus_one = true;
  const std::string act = fields.text_or("hidden_activation", "gelu_pytorch_tanh");
  if (act != "gelu_pytorch_tanh") refuse("hidden_activation '" + printable(act) + "'");
  if (fields.has("attn_logit_softcapping")) refuse("attn_logit_softcapping");
  if (fields.flag_or("use_bidirectional_attention", false)) refuse("use_bidirectional_attention");
  model.attention_scale = attention_scale_of(fields.number_or("query_pre_attn_scalar", kGemmaScalar, 1, kMaxWidth));
  model.final_softcap = static_cast<float>(fields.number_or("final_logit_softcapping", 0, 0, kMaxFactor));
  const auto period = fields.integer_or("sliding_window_pattern", kGemmaPeriod, 1, kMaxLayers);
  const auto window = static_cast<int>(fields.integer_or("sliding_window", kGemmaWindow, 1, kMaxContext));
  set_local_layers(model, hf_local_layers(fields, config, model.L, period), window);
}

// The global and the local RoPE. Newer files have an object for each in rope_parameters; older ones have rope_theta,
// rope_scaling and rope_local_base_freq.
std::pair<RopeSettings, RopeSettings> hf_gemma3_ropes(Fields& fields, const nlohmann::json& config,
                                                      ModelConfig& model) {
  static constexpr const char* kFull[] = {"full_attention"};
  static constexpr const char* kSliding[] = {"sliding_attention"};
  const double theta = fields.number_or("rope_theta", kGemmaTheta, 1, kMaxTheta);
  const double local_theta = fields.number_or("rope_local_base_freq", kGemmaLocalTheta, 1, kMaxTheta);
  const nlohmann::json& object = hf_rope_object(fields, config);
  const bool nested = object.contains(kFull[0]) || object.contains(kSliding[0]);
  const RopeSettings global = hf_rope(fields, nested ? object_of(fields, object, kFull) : object, theta, model);
  if (!nested) {
    RopeSettings local = unscaled(global);
    local.theta = local_theta;
    return {global, local};
  }
  return {global, hf_rope(fields, object_of(fields, object, kSliding), local_theta, model)};
}

void read_gguf_gemma3(Fields& fields, ModelConfig& model) {
  gemma3_arithmetic(model);
  const int scalar = model.L == kGemma27BLayers ? model.D / model.H : model.E;
  model.attention_scale = attention_scale_of(scalar);
  if (fields.has("attn_logit_softcapping")) {
    fields.fail(error(Code::kUnsupported, "{}: gemma3.attn_logit_softcapping is not supported", fields.where()));
  }
  model.final_softcap = static_cast<float>(fields.number_or("final_logit_softcapping", 0, 0, kMaxFactor));
  const auto window = static_cast<int>(fields.integer_or("attention.sliding_window", 0, 0, kMaxContext));
  const int64_t period = fields.integer_or("attention.sliding_window_pattern", kGemmaPeriod, 1, kMaxLayers);
  if (window > 0) set_local_layers(model, every_nth_is_global(model.L, period), window);
}

// Files of llama (which mistral is, too) and phi3 may name one window for all layers. A window in any other file is an
// error.
std::vector<int> gguf_windows(Fields& fields, const std::string& arch, int L) {
  const int64_t window = fields.integer_or("attention.sliding_window", 0, 0, kMaxContext);
  if (window == 0 && arch == "gpt-oss")
    fields.fail(
        error(Code::kUnsupported, "{}: gpt-oss without attention.sliding_window is not supported", fields.where()));
  if (window == 0) return {};
  if (arch == "gpt-oss") {  // every other layer, the first one too
    std::vector<int> out(static_cast<size_t>(L), static_cast<int>(window));
    for (size_t l = 1; l < out.size(); l += 2) out[l] = -1;
    if (fields.integer_or("attention.sliding_window_pattern", 2, 0, kMaxLayers) != 2)
      fields.fail(error(Code::kUnsupported, "{}: a sliding_window_pattern other than 2", fields.where()));
    return out;
  }
  if ((arch != "llama" && arch != "phi3") || fields.has("attention.sliding_window_pattern")) {
    fields.fail(error(Code::kUnsupported,
                      "{}: '{}.attention.sliding_window' is set; known are windows of all layers of llama and phi3",
                      fields.where(), arch));
  }
  return std::vector<int>(static_cast<size_t>(L), static_cast<int>(window));
}

Result<int> gguf_vocabulary(const GgufFile& gguf, const std::string& where) {
  const StoredTensor* embedding = gguf.tensors.find("token_embd.weight");
  if (!embedding)
    return error(Code::kCorrupt, "{}: tensor 'token_embd.weight' is missing (a vocabulary without a model?)", where);
  if (embedding->rows > kMaxVocab)
    return error(Code::kCorrupt, "{}: tensor 'token_embd.weight' has {} rows", where, embedding->rows);
  return static_cast<int>(embedding->rows);
}

}  // namespace

std::vector<uint8_t> hf_local_layers(Fields& fields, const nlohmann::json& config, int L, int64_t period) {
  std::vector<uint8_t> local = every_nth_is_global(L, period);
  const auto types = config.find("layer_types");
  if (types == config.end() || types->is_null()) return local;
  if (!types->is_array() || types->size() != local.size()) {
    fields.fail(error(Code::kCorrupt, "{}: 'layer_types' must be a list of {} texts", fields.where(), L));
    return local;
  }
  for (size_t l = 0; l < local.size(); ++l) {
    local[l] = (*types)[l] == "sliding_attention";
    if (!local[l] && (*types)[l] != "full_attention")
      fields.fail(
          error(Code::kUnsupported,
                "{}: a layer type other than full_attention and sliding_attention (layer_types) is not supported",
                fields.where()));
  }
  return local;
}

Result<ReadConfig> read_hf_config(const nlohmann::json& config, const std::string& where) {
  if (!config.is_object()) return error(Code::kCorrupt, "{}: not a JSON object", where);
  if (is_multimodal(config)) {
    KVILT_ASSIGN(const nlohmann::json text, text_config_of(config, where));
    return read_hf_config(text, where + ": text_config");  // of a text model: no deeper than this
  }
  Fields fields(config, where);
  const std::string type = fields.text_or("model_type", "");
  KVILT_TRY(fields.status());
  const bool text_part = type == "gemma3_text" || type == "gemma4_text";
  KVILT_ASSIGN(const Architecture* arch, find_architecture(text_part ? type.substr(0, 6) : type, config, where));
  const bool gemma3 = arch->name == "gemma3", gemma4 = arch->name == "gemma4";
  ReadConfig out;
  ModelConfig& model = out.config;
  const auto size = [&](const char* key, int64_t high) { return static_cast<int>(fields.integer(key, 1, high)); };
  model.arch = arch->name;
  model.name = fields.text_or("_name_or_path", "");
  model.D = size("hidden_size", kMaxWidth);
  model.H = size("num_attention_heads", kMaxHeads);
  model.G = static_cast<int>(fields.integer_or("num_key_value_heads", model.H, 1, kMaxHeads));
  model.E = gemma3 || gemma4 ? static_cast<int>(fields.integer_or("head_dim", kGemmaHeadDim, 2, kMaxHeadDim))
                             : head_dim(fields, "head_dim", model);
  model.F = size("intermediate_size", kMaxWidth);
  model.L = size("num_hidden_layers", kMaxLayers);
  model.V = size("vocab_size", kMaxVocab);
  model.context = size("max_position_embeddings", kMaxContext);
  model.rms_eps = static_cast<float>(fields.number_or("rms_norm_eps", arch->eps, 0, 1));
  model.qk_norm = arch->qk_norm;
  model.tied_embeddings = fields.flag_or("tie_word_embeddings", gemma3 || gemma4);
  const bool attention_bias = fields.flag_or("attention_bias", arch->experts == ExpertRule::kGptOss);
  out.biases = {arch->qkv_bias || attention_bias, attention_bias, fields.flag_or("mlp_bias", false)};
  refuse_hf_extras(fields, config, *arch);
  if (arch->experts == ExpertRule::kGptOss) gpt_oss_arithmetic(model);
  model.experts = read_hf_experts(fields, config, arch->experts, model.L);
  if (gemma4) {
    KVILT_TRY(read_hf_gemma4(fields, config, model));
    return out;
  }
  RopeSettings rope, local;
  if (gemma3) {
    read_hf_gemma3(fields, config, model);
    std::tie(rope, local) = hf_gemma3_ropes(fields, config, model);
    check_two_ropes(fields, rope, local);
  } else {
    model.window = hf_windows(fields, config, *arch, model.L);
    const nlohmann::json& object = hf_rope_object(fields, config);
    if (object.empty() && arch->experts == ExpertRule::kGptOss) {  // Transformers would take a YaRN of its own
      fields.fail(
          error(Code::kUnsupported, "{}: gpt_oss without RoPE settings (rope_parameters or rope_scaling)", where));
    }
    rope = hf_rope(fields, object, fields.number_or("rope_theta", arch->theta, 1, kMaxTheta), model);
  }
  KVILT_TRY(fields.status());
  KVILT_TRY(check_heads(model, where));
  KVILT_ASSIGN(model.rope, make_rope(rope, where));
  if (model.long_above > 0) {
    KVILT_ASSIGN(model.long_rope, make_rope(for_long(rope), where));
  }
  if (gemma3) {
    KVILT_ASSIGN(model.local_rope, make_rope(local, where));
  }
  return out;
}

Result<ReadConfig> read_gguf_config(const GgufFile& gguf, const std::string& where) {
  Fields general(gguf, "general.", where);
  const std::string type = general.text_or("architecture", "");
  ReadConfig out;
  ModelConfig& model = out.config;
  model.name = general.text_or("name", "");
  KVILT_TRY(general.status());
  KVILT_ASSIGN(const Architecture* arch, find_architecture(type, gguf, where));
  Fields fields(gguf, type + ".", where);
  const auto size = [&](const char* key, int64_t high) { return static_cast<int>(fields.integer(key, 1, high)); };
  model.arch = arch->name;
  model.D = size("embedding_length", kMaxWidth);
  model.H = size("attention.head_count", kMaxHeads);
  const bool gemma3 = arch->name == "gemma3", gemma4 = arch->name == "gemma4";
  if (!gemma4) model.G = static_cast<int>(fields.integer_or("attention.head_count_kv", model.H, 1, kMaxHeads));
  model.E = head_dim(fields, "attention.key_length", model);
  if (!gemma4) model.F = size("feed_forward_length", kMaxWidth);
  model.L = size("block_count", kMaxLayers);
  model.context = size("context_length", kMaxContext);
  model.rms_eps = static_cast<float>(fields.number_or("attention.layer_norm_rms_epsilon", 1e-5, 0, 1));
  model.qk_norm = arch->qk_norm;
  model.tied_embeddings = !gguf.tensors.find("output.weight");
  out.biases = {arch->qkv_bias, arch->experts == ExpertRule::kGptOss, false};
  if (arch->experts == ExpertRule::kGptOss) gpt_oss_arithmetic(model);
  if (fields.integer_or("attention.value_length", model.E, 1, kMaxHeadDim) != model.E) {
    fields.fail(error(Code::kUnsupported, "{}: value heads of another size than key heads", where));
  }
  KVILT_ASSIGN(model.V, gguf_vocabulary(gguf, where));
  if (gemma4) {
    KVILT_TRY(read_gguf_gemma4(fields, gguf, model));
    return out;
  }
  // mixtral is llama with experts.
  const ExpertRule experts = arch->name == "llama" ? ExpertRule::kMixtral : arch->experts;
  model.experts = read_gguf_experts(fields, experts, model.F, model.L);
  if (arch->name == "llama" && model.experts.count > 0) model.arch = "mixtral";
  if (gemma3) {
    read_gguf_gemma3(fields, model);
  } else {
    model.window = gguf_windows(fields, type, model.L);
  }
  const RopeSettings rope = gguf_rope(fields, gguf, arch->gguf_pairs, model);
  RopeSettings local = unscaled(rope);
  if (gemma3) {
    local.theta = fields.number_or("rope.freq_base_swa", kGemmaLocalTheta, 1, kMaxTheta);
    check_two_ropes(fields, rope, local);
  }
  KVILT_TRY(fields.status());
  KVILT_TRY(check_heads(model, where));
  KVILT_ASSIGN(model.rope, make_rope(rope, where));
  if (model.long_above > 0) {
    KVILT_ASSIGN(model.long_rope, make_rope(for_long(rope), where));
  }
  if (gemma3) {
    KVILT_ASSIGN(model.local_rope, make_rope(local, where));
  }
  return out;
}

}  // namespace kvilt
