// engine/profiled_prompt.h: how a prompt is computed that is only looked at: by chunks of one band, outside of the
// scheduler. For profilers (head_profile.h, layer_profile.h, sparse_profile.h).
// Threads: the engine thread, between steps.
#pragma once

#include <span>

#include "forward/driver.h"
#include "kv/page_store.h"
#include "kv/page_table.h"

namespace kvilt {

struct ProfilerParts {
  const PreparedModel& model;
  ThreadPool& pool;
  Driver& driver;
  PageStore& store;
};

// Pages that a prompt of this length takes.
int64_t profiled_pages(const ProfilerParts& parts, size_t tokens);

// A band of the plan's first stage. All outlive it.
Chunk chunk_of(PageTable& kv, const Plan& plan, const Band& band, std::span<const int32_t> ids);

// Runs the band of all positions, a block of rows at a time. logits, if there are any, has V for each of the rows of
// `last`.
void run_chunks(Driver& driver, Chunk chunk, const Runs& last = {}, int64_t V = 0);

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

}  // namespace kvilt
