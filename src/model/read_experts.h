// model/read_experts.h: the settings of mixture-of-experts layers, from config.json or GGUF metadata.
// Source:   Transformers' MixtralConfig and Qwen3MoeConfig; llama.cpp's keys expert_*.
// Not here: the tensors (tensor_table.cc), the arithmetic (forward/expert_routing.h).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "model/config.h"
#include "model/fields.h"

namespace kvilt {

inline constexpr int64_t kMaxExperts = 1 << 10;  // of a layer; the largest known models have 512

enum class ExpertRule : uint8_t { kNone, kMixtral, kQwen3Moe, kGptOss };

// Mistakes and unsupported settings are reported through `fields`.
ExpertConfig read_hf_experts(Fields& fields, const nlohmann::json& config, ExpertRule rule, int L);

// fields: those of the architecture. F: feed_forward_length, the experts' width unless they name one. No experts if
// expert_count is missing or 0.
ExpertConfig read_gguf_experts(Fields& fields, ExpertRule rule, int F, int L);

}  // namespace kvilt
