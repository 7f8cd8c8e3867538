// index/cached_segment.h: what the content index knows of a cached segment, and what it answers. Plain data. A segment
// is an immutable sequence of token ids whose KV is cached; the index knows it by its id. docs/design/finding.md.
// Not here: the KV itself (kv/), what is done with a found piece (policy/).
#pragma once

#include <cstdint>
#include <vector>

namespace kvilt {

using SegmentId = uint64_t;  // never reused; 0 names no segment
// Names one (model fingerprint, namespace, tenant salt); never reused; 0 names none. A request finds segments of its
// own domain only.
using DomainId = int64_t;

struct SegmentInfo {
  std::vector<int32_t> tokens;
  DomainId domain = 0;
  bool exact = false;         // its KV equals a full prefill of [parent chain ..., tokens]: usable as an exact prefix
  SegmentId parent = 0;       // of an exact segment: the one that it continues ...
  int32_t parent_tokens = 0;  // ... after this many of its tokens; 0: the segment starts at position 0
};

// A known part of a prompt: `count` tokens from pos on equal those of `segment` from its token segment_offset on.
struct Piece {
  SegmentId segment = 0;
  int32_t segment_offset = 0, count = 0, pos = 0;
  bool operator==(const Piece&) const = default;
};

}  // namespace kvilt
