// model/read_config.h: config.json or GGUF metadata to ModelConfig, checked against limits and against itself.
// Source:  Transformers' configuration classes for model_type llama, qwen2, qwen3; the GGUF specification's keys.
// Idea:    an architecture is a row of kArchitectures plus fields; an unknown setting that changes the arithmetic is
//          refused.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kvilt/result.h"
#include "model/config.h"
#include "model/fields.h"
#include "model/gguf.h"
#include "model/tensor_table.h"

namespace kvilt {

// Far above any model, and low enough that products of two fit 64 bits and a hostile file cannot ask for much.
inline constexpr int64_t kMaxWidth = 1 << 20;
inline constexpr int64_t kMaxLayers = 1 << 10;
inline constexpr int64_t kMaxHeads = 1 << 12;
inline constexpr int64_t kMaxHeadDim = 1 << 12;
inline constexpr int64_t kMaxContext = 1 << 28;
inline constexpr double kMaxFactor = 1e6, kMaxTheta = 1e12;

struct ReadConfig {
  ModelConfig config;
  BiasRule biases;
};

// config: the parsed config.json; of a multimodal model its text part is read (text_part.h). The caller fills
// bos_token, eos_token, add_bos and eos_ids from the tokenizer's files.
Result<ReadConfig> read_hf_config(const nlohmann::json& config, const std::string& where);

// V comes from the embedding's rows, RoPE's factors from the F32 tensor rope_freqs.weight if there is one.
Result<ReadConfig> read_gguf_config(const GgufFile& gguf, const std::string& where);

// By layer, 1: it is local. Those that layer_types names, or else all but every period-th.
std::vector<uint8_t> hf_local_layers(Fields& fields, const nlohmann::json& config, int L, int64_t period);

}  // namespace kvilt
