#include "model/read_rope.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "model/read_config.h"
#include "tensor/dequantize.h"

namespace kvilt {
namespace {

constexpr int kPhi3OriginalContext = 4096;  // Transformers' default

std::optional<double> optional_number(Fields& fields, const char* key) {
  if (!fields.has(key)) return {};
  return fields.number_or(key, 0, 0, kMaxFactor);
}

std::vector<double> number_list(const nlohmann::json& object, const char* key) {
  std::vector<double> out;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array() || it->size() > kMaxHeadDim) return out;
  for (const auto& x : *it)
    out.push_back(x.is_number() ? x.get<double>() : std::nan(""));  // NaN is refused by make_rope
  return out;
}

// Sequences longer than the original context rotate by the long factors, at every position. Without long factors there
// are no such sequences.
void set_long(const RopeSettings& s, ModelConfig& model) {
  const double longest = std::min<double>(model.context, s.original_context);
  if (s.long_divisors.empty()) {
    model.context = static_cast<int>(longest);
  } else if (longest < model.context) {
    model.long_above = static_cast<int>(longest);
  }
}

RopeScaling scaling_of(Fields& fields, const std::string& kind) {
  if (const auto scaling = rope_scaling_by_name(kind)) return *scaling;
  fields.fail(error(Code::kUnsupported, "{}: RoPE scaling '{}'", fields.where(), printable(kind)));
  return RopeScaling::kNone;
}

void refuse_unused(Fields& fields, const char* key, double value, const std::string& kind) {
  if (value == 1) return;
  fields.fail(error(Code::kUnsupported, "{}: '{}' is {}, which RoPE of the kind '{}' does not use", fields.where(), key,
                    value, printable(kind)));
}

bool has_attention_factor(RopeScaling kind) { return kind == RopeScaling::kYarn || kind == RopeScaling::kLongRope; }

// Transformers refuses most of it, too.
void check_hf_factors(Fields& rope, const RopeSettings& s, const std::string& kind) {
  if (s.scaling == RopeScaling::kNone && rope.has("factor"))
    refuse_unused(rope, "factor", s.factor, kind.empty() ? "default (no rope_type)" : kind);
  if (!has_attention_factor(s.scaling)) refuse_unused(rope, "attention_factor", s.attention_factor.value_or(1), kind);
  const bool from_contexts = s.scaling == RopeScaling::kYarn && rope.has("original_max_position_embeddings");
  const bool needs = s.scaling != RopeScaling::kNone && s.scaling != RopeScaling::kLongRope && !from_contexts;
  if (needs && !rope.has("factor"))
    rope.fail(
        error(Code::kCorrupt, "{}: 'factor' is missing, which the kind '{}' needs", rope.where(), printable(kind)));
}

}  // namespace

const nlohmann::json& object_of(Fields& fields, const nlohmann::json& config, std::span<const char* const> keys) {
  static const nlohmann::json kNothing = nlohmann::json::object();
  for (const char* key : keys) {
    const auto it = config.find(key);
    if (it == config.end() || it->is_null()) continue;
    if (it->is_object()) return *it;
    fields.fail(error(Code::kCorrupt, "{}: '{}' is not an object", fields.where(), key));
    break;
  }
  return kNothing;
}

const nlohmann::json& hf_rope_object(Fields& fields, const nlohmann::json& config) {
  static constexpr const char* kKeys[] = {"rope_parameters", "rope_scaling"};
  return object_of(fields, config, kKeys);
}

RopeSettings for_long(RopeSettings settings) {
  settings.divisors = settings.long_divisors;
  return settings;
}

RopeSettings hf_rope(Fields& fields, const nlohmann::json& object, double theta, ModelConfig& model) {
  Fields rope(object, fields.where() + ": RoPE settings");
  RopeSettings s;
  s.head_dim = model.E;
  s.theta = rope.number_or("rope_theta", theta, 1, kMaxTheta);
  const double partial = fields.number_or("partial_rotary_factor", 1, 0, 1);
  s.rotary_dim = static_cast<int>(model.E * rope.number_or("partial_rotary_factor", partial, 0, 1));
  const std::string kind = rope.text_or("rope_type", rope.text_or("type", ""));
  s.scaling = kind.empty() ? RopeScaling::kNone : scaling_of(fields, kind);
  if (model.arch == "phi3" && s.scaling == RopeScaling::kYarn) s.scaling = RopeScaling::kLongRope;  // an older name
  if (object.contains("mrope_section")) {
    fields.fail(error(Code::kUnsupported, "{}: multi-dimensional RoPE (mrope_section)", fields.where()));
  }
  const int by_default = model.arch == "phi3" ? kPhi3OriginalContext : model.context;
  const double original = fields.number_or("original_max_position_embeddings", by_default, 1, kMaxContext);
  s.original_context = rope.number_or("original_max_position_embeddings", original, 1, kMaxContext);
  s.factor = rope.number_or("factor", model.context / s.original_context, 0, kMaxFactor);
  s.low_freq_factor = rope.number_or("low_freq_factor", s.low_freq_factor, 0, kMaxFactor);
  s.high_freq_factor = rope.number_or("high_freq_factor", s.high_freq_factor, 0, kMaxFactor);
  s.beta_fast = rope.number_or("beta_fast", s.beta_fast, 0, kMaxFactor);
  s.beta_slow = rope.number_or("beta_slow", s.beta_slow, 0, kMaxFactor);
  s.truncate = rope.flag_or("truncate", true);
  s.attention_factor = optional_number(rope, "attention_factor");
  s.mscale = optional_number(rope, "mscale");
  s.mscale_all_dim = optional_number(rope, "mscale_all_dim");
  check_hf_factors(rope, s, kind);
  if (s.scaling == RopeScaling::kLongRope) {
    s.divisors = number_list(object, "short_factor");
    if (s.divisors.empty()) fields.fail(error(Code::kCorrupt, "{}: LongRoPE without short_factor", fields.where()));
    s.long_divisors = number_list(object, "long_factor");
    set_long(s, model);
  }
  if (!rope.status().ok()) fields.fail(rope.status().error());
  return s;
}

double gguf_rope_factor(Fields& fields) {
  const double old_linear = fields.number_or("rope.scale_linear", 1, 0, kMaxFactor);
  const double factor = fields.number_or("rope.scaling.factor", old_linear, 0, kMaxFactor);
  return factor == 0 ? 1 : factor;  // 0 is the format's way to write "none"
}

double gguf_attention_factor(Fields& fields) { return fields.number_or("rope.scaling.attn_factor", 1, 0, kMaxFactor); }

RopeSettings gguf_rope(Fields& fields, const GgufFile& gguf, RopePairs pairs, ModelConfig& model) {
  RopeSettings s;
  s.pairs = pairs;
  s.head_dim = model.E;
  s.rotary_dim = static_cast<int>(fields.integer_or("rope.dimension_count", model.E, 2, kMaxHeadDim));
  s.theta = fields.number_or("rope.freq_base", 10000, 1, kMaxTheta);
  s.factor = gguf_rope_factor(fields);
  // A file that names no kind means the linear one, which is none where there is no factor.
  std::string kind = fields.text_or("rope.scaling.type", s.factor != 1 ? "linear" : "none");
  s.scaling = scaling_of(fields, kind);
  // Files of phi3 name no kind of scaling; the tensors of factors tell it.
  if (gguf.tensors.find("rope_factors_short.weight")) s.scaling = RopeScaling::kLongRope, kind = "longrope";
  s.original_context =
      static_cast<double>(fields.integer_or("rope.scaling.original_context_length", model.context, 1, kMaxContext));
  s.beta_fast = fields.number_or("rope.scaling.yarn_beta_fast", s.beta_fast, 0, kMaxFactor);
  s.beta_slow = fields.number_or("rope.scaling.yarn_beta_slow", s.beta_slow, 0, kMaxFactor);
  const double attention = gguf_attention_factor(fields);
  const bool scaled = s.scaling != RopeScaling::kNone && s.scaling != RopeScaling::kLongRope;
  if (!scaled) refuse_unused(fields, "rope.scaling.factor", s.factor, kind);
  if (!has_attention_factor(s.scaling)) refuse_unused(fields, "rope.scaling.attn_factor", attention, kind);
  if (s.scaling == RopeScaling::kYarn && attention != 1) {  // a factor on top of YaRN's own
    s.attention_factor = attention * (s.factor > 1 ? 0.1 * std::log(s.factor) + 1 : 1);
  }
  s.truncate = model.arch != "gpt_oss";  // no key says it; the family's config.json does
  s.divisors = gguf_divisors(fields, gguf, "rope_freqs.weight");
  if (s.scaling == RopeScaling::kLongRope) {
    s.divisors = gguf_divisors(fields, gguf, "rope_factors_short.weight");
    if (s.divisors.empty())
      fields.fail(error(Code::kCorrupt, "{}: LongRoPE without rope_factors_short.weight", fields.where()));
    s.long_divisors = gguf_divisors(fields, gguf, "rope_factors_long.weight");
    if (attention != 1) s.attention_factor = attention;
    s.factor = model.context / s.original_context;
    set_long(s, model);
  }
  return s;
}

std::vector<double> gguf_divisors(Fields& fields, const GgufFile& gguf, const std::string& name) {
  const StoredTensor* stored = gguf.tensors.find(name);
  if (!stored) return {};
  if (!stored->readable || stored->dtype != DType::kF32 || stored->rows != 1 || stored->cols > kMaxHeadDim) {
    fields.fail(error(Code::kCorrupt, "{}: tensor '{}' is not a vector of F32", fields.where(), name));
    return {};
  }
  std::vector<float> values(static_cast<size_t>(stored->cols));
  dequantize(stored->dtype, stored->data, values.size(), values.data());
  return {values.begin(), values.end()};
}

}  // namespace kvilt
