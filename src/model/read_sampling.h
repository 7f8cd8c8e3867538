// model/read_sampling.h: what a model's files advise about sampling: generation_config.json, or general.sampling.* of
// GGUF.
// Source:  Transformers' GenerationConfig; llama.cpp's keys (its pull request 17120).
// Idea:    advice is no reason to refuse a model, and who has a GGUF cannot easily correct it: a setting that is wrong
//          is left out, with a warning that names file, key and value.
// Limits:  five settings. Others (typical_p, mirostat, lengths) are ignored.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kvilt/sampling_defaults.h"
#include "model/gguf.h"

namespace kvilt {

struct ReadSampling {
  SamplingDefaults defaults;
  std::vector<std::string> warnings;
};

// config: the parsed generation_config.json. "do_sample": false is temperature 0 where no temperature is named.
ReadSampling read_hf_sampling(const nlohmann::json& config, const std::string& where);
ReadSampling read_gguf_sampling(const GgufFile& gguf, const std::string& where);

}  // namespace kvilt
