// model/hub_cache.h: a model by its name on Hugging Face's hub, as other programs have downloaded it:
// Qwen/Qwen3-4B-GGUF:Q4_K_M is a file of ~/.cache/huggingface/hub.
// Source: huggingface_hub's cache: models--ORG--NAME/refs/main names a commit, snapshots/COMMIT/ has the files. The
//         folder is HF_HUB_CACHE, or HF_HOME/hub, or XDG_CACHE_HOME/huggingface/hub, or ~/.cache/huggingface/hub.
// Errors: kNotFound says where it was looked for and how to get it; kInvalidArgument lists what there is to choose.
// Not here: downloads; the network is never used.
#pragma once

#include <string>

#include "kvilt/result.h"

namespace kvilt {

// A path that open_model() takes. name: a path of something that exists, or that has not the form ORG/NAME or
// ORG/NAME:TAG, is returned as it is. The tag is a part of the GGUF file's name between marks; without one, a single
// GGUF file, a folder of safetensors, or the Q4_K_M among several is taken.
Result<std::string> find_model(const std::string& name);
// The same in this hub folder.
Result<std::string> find_model_in(const std::string& hub, const std::string& name);

}  // namespace kvilt
