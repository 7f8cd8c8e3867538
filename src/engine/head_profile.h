// engine/head_profile.h: profiles the KV heads of a model on one prompt (kvilt/head_profile.h).
// Method:  one dense pass keeps the hidden states that enter each layer, and measures attention outside of windows.
//          Then for each KV head, deepest layer first, the layers from its own on are computed again with only that
//          head local. A layer's K and V do not depend on a view in it, and a deeper head's pass rewrites deeper layers
//          only: one page table serves all. With prefixes, the prompt without any and with each of them runs once more,
//          layer by layer in lock-step.
// Cost:    half a forward per KV head on average; L T D floats of hidden states, rows V floats of distributions.
// Threads: the engine thread, between steps.
#pragma once

#include <span>

#include "forward/driver.h"
#include "kv/page_store.h"
#include "kv/page_table.h"
#include "kvilt/head_profile.h"
#include "kvilt/result.h"

namespace kvilt {

struct ProfilerParts {
  const PreparedModel& model;
  ThreadPool& pool;
  Driver& driver;
  PageStore& store;
};

// A prompt with pages for all of its rows, which runs through plans of one stage band by band.
struct ProfilePass {
  ProfilePass(const ProfilerParts& parts, std::span<const int32_t> ids);
  // Logits of the rows `wanted` go to `logits`, if the band ends in them.
  void run(const Plan& plan, const Band& band, std::span<Probe> probes, const Runs& wanted = {},
           float* logits = nullptr);

  Driver& driver;
  const int64_t V;
  std::span<const int32_t> ids;
  PageTable kv;
  HiddenRows hidden;
};

// Pages that profiling a prompt of this length takes: the store must have them free.
int64_t head_profile_pages(const ProfilerParts& parts, size_t tokens, const HeadProfileOptions& options);

// REQUIRES: at least two tokens, head_profile_pages() free pages, options that check_profile() lets pass.
HeadProfile profile_heads(const ProfilerParts& parts, std::span<const int32_t> ids, const HeadProfileOptions& options);

// Errors: kInvalidArgument naming what is wrong.
Status check_profile(std::span<const int32_t> ids, const HeadProfileOptions& options);

}  // namespace kvilt
