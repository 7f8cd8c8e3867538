// model/read_gemma4.h: what gemma 4's text models say beyond other architectures: two kinds of layers that differ in
// head size, KV heads, window and RoPE.
// Source:     Transformers' Gemma4TextConfig; llama.cpp's converter and loader for the keys of a GGUF.
// Invariants: a setting that changes the arithmetic and is not computed here is refused by name.
// Not here:   sizes that every architecture has (read_config.cc), tensors (tensor_table.cc).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "model/config.h"
#include "model/fields.h"
#include "model/gguf.h"

namespace kvilt {

// Fill in all that is gemma 4's own. REQUIRES: model has D, H, L and context; G and E as the file states them for local
// layers (config.json). Mistakes are reported through `fields`, or returned where they are found last.
Status read_hf_gemma4(Fields& fields, const nlohmann::json& config, ModelConfig& model);
Status read_gguf_gemma4(Fields& fields, const GgufFile& gguf, ModelConfig& model);

}  // namespace kvilt
