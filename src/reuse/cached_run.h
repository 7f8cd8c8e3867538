// reuse/cached_run.h: what the content index knows of a cached run, and what it answers. Plain data. A run is an
// immutable sequence of token ids whose KV lies somewhere; here it is an id.
// Source:   DESIGN 5.
// Not here: the KV itself (kv/), what is done with a found piece (the policies of this folder).
#pragma once

#include <cstdint>
#include <vector>

namespace kvilt {

using RunId = uint64_t;  // never reused; 0 names no run
// Names one (model fingerprint, namespace, tenant salt); never reused; 0 names none. Runs of different domains never
// meet.
using DomainId = int64_t;

struct RunInfo {
  std::vector<int32_t> tokens;
  DomainId domain = 0;
  bool exact = false;         // its KV equals a full prefill of [parent chain ..., tokens]: usable as an exact prefix
  RunId parent = 0;           // exact runs: the chain continues ...
  int32_t parent_tokens = 0;  // ... after this many tokens of the parent; 0: the run starts at position 0
};

// `count` tokens of `run` from its token `run_offset` on stand in the prompt from `pos` on.
struct Piece {
  RunId run = 0;
  int32_t run_offset = 0, count = 0, pos = 0;
  bool operator==(const Piece&) const = default;
};

struct MarkRange {
  int32_t begin = 0, end = 0;  // half-open, positions of the prompt
};

}  // namespace kvilt
