// model/text_part.h: the text model in the folder of a multimodal one (model_type gemma3, gemma4).
// Source:  Transformers' Gemma3Config and Gemma4Config, and the tensors' names in Google's files of both.
// Idea:    once its settings are those of a text model's config.json and its tensors have the names that they have
//          there, nothing else knows the difference: same weights, same fingerprint, same answers.
// Not here: images and audio. What belongs to them is left out.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kvilt/result.h"
#include "model/tensor_table.h"

namespace kvilt {

bool is_multimodal(const nlohmann::json& config);

// `text_config`, with what only the whole says and what Transformers leaves out because it is its default.
// REQUIRES: is_multimodal(config).
Result<nlohmann::json> text_config_of(const nlohmann::json& config, const std::string& where);

// The text model's tensors by a text model's names. Errors: kCorrupt if there are none, or two for one name.
Result<TensorTable> text_tensors_of(const TensorTable& all, const std::string& where);

}  // namespace kvilt
