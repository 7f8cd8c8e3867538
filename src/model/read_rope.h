// model/read_rope.h: the RoPE settings of config.json and of a GGUF's metadata (model/rope.h makes angles of them).
// Source:  Transformers' rope utilities; llama.cpp's defaults for the keys of the GGUF specification.
// Idea:    a scale that the stated kind does not use is refused: dropped in silence, every angle would be wrong.
// Not here: gemma 4's, whose kinds of layers differ in more (read_gemma4.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "model/fields.h"
#include "model/gguf.h"
#include "model/rope.h"

namespace kvilt {

// The first of `keys` that is present and not null, which must be an object; else an empty object.
const nlohmann::json& object_of(Fields& fields, const nlohmann::json& config, std::span<const char* const> keys);

// Settings are in "rope_scaling" with a top-level rope_theta, or (newer files) all in "rope_parameters".
const nlohmann::json& hf_rope_object(Fields& fields, const nlohmann::json& config);

// theta: used if the object names none. LongRoPE sets the model's context and long_above.
RopeSettings hf_rope(Fields& fields, const nlohmann::json& object, double theta, ModelConfig& model);
RopeSettings gguf_rope(Fields& fields, const GgufFile& gguf, RopePairs pairs, ModelConfig& model);

// Those of sequences longer than ModelConfig::long_above.
RopeSettings for_long(RopeSettings settings);

// 1: none. As llama.cpp reads them, 0 and an older key among them.
double gguf_rope_factor(Fields& fields);
double gguf_attention_factor(Fields& fields);

// A vector of RoPE's factors; empty if there is no such tensor.
std::vector<double> gguf_divisors(Fields& fields, const GgufFile& gguf, const std::string& name);

}  // namespace kvilt
