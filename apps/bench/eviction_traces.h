// apps/bench/eviction_traces.h: what requests ask for, as blocks of a prefix: recorded, or made up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvilt/result.h"

namespace kvilt {

struct Trace {
  std::string name;
  int block_tokens = 0;
  std::vector<std::vector<uint64_t>> requests;  // each the blocks of its prompt, in order; equal ones are equal text
  std::vector<double> seconds;                  // when each arrives, from 0 on, in order; empty: nobody knows
};

// A file of Mooncake's (JSON lines with hash_ids, blocks of 512 tokens), or of Azure's (CSV of lengths). The latter says
// nothing about text: its requests are made into conversations by their lengths (`seed`), each the last one that has
// room for it or a new one. Times are known where every line has a timestamp in milliseconds.
// Errors: kNotFound (no such file), kInvalidArgument (it is neither, with the line).
Result<Trace> read_trace(const std::string& path, uint64_t seed);

// Of so many requests: half are turns of conversations under one of a few system prompts, three in ten ask over one of
// 300 documents (few of them often), two in ten bring a long text once.
Trace mixed_trace(int requests, uint64_t seed);

}  // namespace kvilt
