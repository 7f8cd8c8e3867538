// index/cached_segment.h: what the content index knows of a cached segment, and what it answers. Plain data. A segment is an
// immutable sequence of token ids whose KV lies somewhere; here it is an id.
// Source:   DESIGN 5.
// Not here: the KV itself (kv/), what is done with a found piece (the policies of this folder).
#pragma once

#include <cstdint>
#include <vector>

namespace kvilt {

using SegmentId = uint64_t;  // never reused; 0 names no segment
// Names one (model fingerprint, namespace, tenant salt); never reused; 0 names none. Segments of different domains never
// meet.
using DomainId = int64_t;

struct SegmentInfo {
  std::vector<int32_t> tokens;
  DomainId domain = 0;
  bool exact = false;         // its KV equals a full prefill of [parent chain ..., tokens]: usable as an exact prefix
  SegmentId parent = 0;       // exact segments: the chain continues ...
  int32_t parent_tokens = 0;  // ... after this many tokens of the parent; 0: the segment starts at position 0
};

// `count` tokens of `segment` from its token `segment_offset` on stand in the prompt from `pos` on.
struct Piece {
  SegmentId segment = 0;
  int32_t segment_offset = 0, count = 0, pos = 0;
  bool operator==(const Piece&) const = default;
};

}  // namespace kvilt
