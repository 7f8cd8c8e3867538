// model/hub_cache.h: a model by its name on Hugging Face's hub, as `kvilt pull` or other programs have downloaded it:
// Qwen/Qwen3-4B-GGUF:Q4_K_M is a file of ~/.cache/huggingface/hub.
// Source: huggingface_hub's cache: models--ORG--NAME/refs/main names a commit, snapshots/COMMIT/ has the files. Which
//         folder it is, and which file a name means: hub_names.h. What main's snapshot lacks is looked for in the others:
//         an earlier download left it there.
// Errors: kNotFound says where it was looked for and how to get it; kInvalidArgument lists what there is to choose.
// Not here: downloads (src/hub/); the network is never used.
#pragma once

#include <string>

#include "kvilt/result.h"

namespace kvilt {

// A path that open_model() takes. name: a path of something that exists, or that has not the form ORG/NAME or
// ORG/NAME:TAG, is returned as it is.
Result<std::string> find_model(const std::string& name);
// The same in this hub folder.
Result<std::string> find_model_in(const std::string& hub, const std::string& name);

}  // namespace kvilt
