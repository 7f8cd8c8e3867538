// model/hub_names.h: names of models on a hub, ORG/NAME or ORG/NAME:TAG, and which of a repository's files they mean.
// Role:    one rule for what is in the hub's cache (hub_cache.h) and for what is downloaded into it (src/hub/).
// Threads: any.
// Not here: the disk, the network.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kvilt/result.h"

namespace kvilt {

struct HubName {
  std::string org, name, tag;  // tag: empty if none is named

  std::string repo() const { return org + "/" + name; }
  std::string text() const { return tag.empty() ? repo() : repo() + ":" + tag; }
  std::string folder() const { return "models--" + org + "--" + name; }  // in the hub's cache
};

// None: the text has not this form. Parts are letters, digits, '-', '_' and '.', so that they are safe in paths.
std::optional<HubName> hub_name(const std::string& text);

// ORG/NAME of a folder of the hub's cache, HubName::folder(); none: the folder has not this form.
std::optional<std::string> repo_of_folder(const std::string& folder);

// HF_HUB_CACHE, or HF_HOME/hub, or XDG_CACHE_HOME/huggingface/hub, or ~/.cache/huggingface/hub.
std::string hub_folder();

// Which of these files (relative paths) open_model() takes: a GGUF file, of a split one the first part; "": the folder
// itself, with its config.json. The tag is a part of the GGUF file's name, or its folder's, between marks; without one,
// a single GGUF file, a folder of safetensors, or the Q4_K_M among several.
// Errors: kNotFound and kInvalidArgument list what there is to choose.
Result<std::string> choose_model(const HubName& name, const std::vector<std::string>& files);

constexpr int kHubDepth = 3;  // folders within folders that are looked into

}  // namespace kvilt
