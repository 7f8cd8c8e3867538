// engine/layer_profile.h: in which layers one prompt shows what matters (kvilt/layer_profile.h).
// Method:  one dense pass, in which every row shows how it looks back at those before it (Estimator::kFade).
// Cost:    L T kFadeSums doubles.
// Threads: the engine thread, between steps.
#pragma once

#include "engine/profiled_prompt.h"
#include "kvilt/layer_profile.h"

namespace kvilt {

// REQUIRES: profiled_pages() free pages, options that check_profile() lets pass.
LayerProfile profile_layers(const ProfilerParts& parts, std::span<const int32_t> ids,
                            const LayerProfileOptions& options);

// Errors: kInvalidArgument naming what is wrong.
Status check_profile(std::span<const int32_t> ids, const LayerProfileOptions& options);

}  // namespace kvilt
