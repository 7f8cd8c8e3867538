// engine/head_profile.h: profiles the KV heads of a model on one prompt (kvilt/head_profile.h).
// Method: one dense pass that keeps the hidden states which enter each layer, and measures attention outside of windows; then for
//         each KV head, deepest layer first, the layers from its own on are computed again with that head alone local. A layer's
//         K and V do not depend on a view in it, and a deeper head's pass rewrites deeper layers only: one page table serves all.
//         With prefixes, a forward more for the prompt alone and one behind each, layer by layer beside each other.
// Cost:   half a forward a KV head on the average; L T D floats for the hidden states, rows V floats for the distributions.
// Threads: the engine thread, between steps.
#pragma once

#include <span>

#include "forward/driver.h"
#include "kv/page_store.h"
#include "kvilt/head_profile.h"
#include "kvilt/result.h"

namespace kvilt {

struct ProfilerParts {
  const PreparedModel& model;
  ThreadPool& pool;
  Driver& driver;
  PageStore& store;
};

// Pages that a prompt of so many tokens takes while it is profiled: the store must have them free.
int64_t head_profile_pages(const ProfilerParts& parts, size_t tokens, const HeadProfileOptions& options);

// REQUIRES: at least two tokens, head_profile_pages() free pages, options that check_profile() lets pass.
HeadProfile profile_heads(const ProfilerParts& parts, std::span<const int32_t> ids, const HeadProfileOptions& options);

// Errors: kInvalidArgument naming what is wrong.
Status check_profile(std::span<const int32_t> ids, const HeadProfileOptions& options);

}  // namespace kvilt
