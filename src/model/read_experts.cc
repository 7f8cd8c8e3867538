#include "model/read_experts.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/read_config.h"

namespace kvilt {
namespace {

int whole(Fields& fields, const char* key, int64_t high) { return static_cast<int>(fields.integer(key, 1, high)); }

void check(Fields& fields, const ExpertConfig& out) {
  if (out.top_k > out.count) {
    fields.fail(
        error(Code::kCorrupt, "{}: {} experts for each token, but there are {}", fields.where(), out.top_k, out.count));
  }
}

// Layers in mlp_only_layers are dense.
void read_dense_layers(Fields& fields, const nlohmann::json& config, ExpertConfig& out) {
  const auto list = config.find("mlp_only_layers");
  if (list == config.end() || list->is_null()) return;
  bool good = list->is_array() && list->size() <= kMaxLayers;
  for (size_t i = 0; good && i < list->size(); ++i) {
    const auto& layer = (*list)[i];
    const int64_t l = layer.is_number_integer() ? layer.get<int64_t>() : -1;
    good = l >= 0;
    // Numbers beyond the last layer are ignored, as in Transformers.
    if (good && l < static_cast<int64_t>(out.sparse.size())) out.sparse[l] = 0;
  }
  if (!good) fields.fail(error(Code::kCorrupt, "{}: 'mlp_only_layers' must be a list of layers", fields.where()));
}

}  // namespace

ExpertConfig read_hf_experts(Fields& fields, const nlohmann::json& config, ExpertRule rule, int L) {
  ExpertConfig out;
  if (rule == ExpertRule::kNone) return out;
  const bool qwen3 = rule == ExpertRule::kQwen3Moe;    // mixtral's and gpt-oss's settings are the same
  const bool local = fields.has("num_local_experts");  // two names of one setting
  out.count = whole(fields, local ? "num_local_experts" : "num_experts", kMaxExperts);
  out.top_k = whole(fields, "num_experts_per_tok", kMaxExperts);
  out.F = whole(fields, qwen3 ? "moe_intermediate_size" : "intermediate_size", kMaxWidth);
  out.biases = rule == ExpertRule::kGptOss;
  out.renormalise = !qwen3 || fields.flag_or("norm_topk_prob", false);
  const int64_t step = qwen3 ? fields.integer_or("decoder_sparse_step", 1, 1, kMaxLayers) : 1;
  for (int l = 0; l < L; ++l) out.sparse.push_back((l + 1) % step == 0 ? 1 : 0);
  if (qwen3) read_dense_layers(fields, config, out);
  check(fields, out);
  return out;
}

ExpertConfig read_gguf_experts(Fields& fields, ExpertRule rule, int F, int L) {
  ExpertConfig out;
  const int64_t count = fields.integer_or("expert_count", 0, 0, kMaxExperts);
  const auto refuse = [&](const char* what) {
    fields.fail(error(Code::kUnsupported, "{}: {} is not supported", fields.where(), what));
    return ExpertConfig{};
  };
  if (count == 0 && rule == ExpertRule::kGptOss) return refuse("gpt-oss without expert_count");
  if (count == 0) return rule == ExpertRule::kQwen3Moe ? refuse("qwen3moe without expert_count") : out;
  if (rule == ExpertRule::kNone) return refuse("'expert_count' of this architecture");
  out.count = static_cast<int>(count);
  out.top_k = whole(fields, "expert_used_count", kMaxExperts);
  out.F = static_cast<int>(fields.integer_or("expert_feed_forward_length", F, 1, kMaxWidth));
  out.biases = rule == ExpertRule::kGptOss;
  out.renormalise = fields.flag_or("expert_weights_norm", true);  // what both families' files mean without the key
  out.sparse.assign(static_cast<size_t>(L), 1);
  if (out.biases && !out.renormalise) return refuse("gpt-oss with expert_weights_norm off");
  // Settings of other families that would change the arithmetic.
  for (const char* key : {"expert_shared_count", "expert_shared_feed_forward_length", "leading_dense_block_count",
                          "interleave_moe_layer_step"}) {
    if (fields.integer_or(key, 0, 0, INT32_MAX) > (key[0] == 'i' ? 1 : 0)) return refuse(key);
  }
  if (fields.integer_or("expert_group_count", 0, 0, INT32_MAX) > 1) return refuse("expert_group_count");
  // 3: softmax over the chosen ones, which is what renormalising gives.
  const int64_t gate = fields.integer_or("expert_gating_func", 1, 0, INT32_MAX);
  if (gate > 1 && !(out.biases && gate == 3)) return refuse("a gate other than softmax (expert_gating_func)");
  const double scale = fields.number_or("expert_weights_scale", 1, 0, 1e6);
  if (scale != 0 && scale != 1) return refuse("expert_weights_scale");
  check(fields, out);
  return out;
}

}  // namespace kvilt
