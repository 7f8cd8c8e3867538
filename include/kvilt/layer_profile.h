// kvilt/layer_profile.h: in which layers of a model the attention agrees on what matters in a text, to make a layer map of
// (docs/formats/layer_map.md).
// Source: SamKV, appendix A.2 (docs/papers.md#samkv).
#pragma once

#include <cstdint>
#include <vector>

#include "kvilt/result.h"

namespace kvilt {

class Engine;

struct LayerProfileOptions {
  int block = 64;     // tokens; the first and the last two blocks of a text do not count
  double sigmas = 3;  // how far the block that the model looks at most must stand out in a layer
};

struct LayerProfile {
  int layers = 0, tokens = 0, blocks = 0;
  std::vector<int> stable;  // by layer: 1 if the block that the model looks at most stands out there
};

// One forward and twice its attention, in which the engine computes nothing else. Errors: kInvalidArgument, also for a
// prompt with too few blocks for one to stand out; kExhausted where the KV pool has no room for the prompt; kUnsupported
// if `engine` is not one of open_engine's.
Result<LayerProfile> profile_layers(Engine& engine, const std::vector<int32_t>& prompt,
                                    const LayerProfileOptions& options);

}  // namespace kvilt
