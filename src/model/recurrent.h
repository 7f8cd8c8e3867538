// model/recurrent.h: models with layers that keep a state instead of keys and values: which they are, for a refusal that
// says why (docs/architectures.md#recurrent-layers).
// Idea:     families by the beginning of their name, and for others what their files say of such layers.
// Not here: what a known architecture refuses (read_config.cc).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "model/gguf.h"

namespace kvilt {

// What keeps the state, in words; empty: nothing that is known. architecture: model_type, or general.architecture.
std::string_view recurrent_layers(std::string_view architecture, const nlohmann::json& config);
std::string_view recurrent_layers(std::string_view architecture, const GgufFile& gguf);

}  // namespace kvilt
