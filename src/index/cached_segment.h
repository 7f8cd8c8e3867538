// index/cached_segment.h: what the content index knows of a cached segment, and what it answers. Plain data. A segment
// is an immutable sequence of token ids whose KV is cached; the index knows it by its id. docs/design/finding.md.
// Not here: the KV itself (kv/), what is done with a found piece (policy/).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "base/token_spread.h"
#include "kvilt/request.h"

namespace kvilt {

using SegmentId = uint64_t;  // never reused; 0 names no segment
// Names one (model fingerprint, namespace, tenant salt); never reused; 0 names none. A request finds segments of its
// own domain only.
using DomainId = int64_t;

// How a segment is found.
enum class FoundAs : uint8_t {
  kBoth,    // as a part of any prompt; if it is exact, also as a prefix
  kPieces,  // only as a part of any prompt: it is exact, but what it continued is gone
  kChain,   // only as what continues its parent: one conversation under one policy
};

struct SegmentInfo {
  std::vector<int32_t> tokens;
  DomainId domain = 0;
  bool exact = false;         // its KV equals a full prefill of [parent chain ..., tokens]: usable as an exact prefix
  SegmentId parent = 0;       // of an exact segment or a chain: the one that it continues ...
  int32_t parent_tokens = 0;  // ... after this many of its tokens; 0: the segment starts at position 0
  FoundAs found_as = FoundAs::kBoth;
  int contexts = 0;                      // of a seasoned piece: its KV is the mean over so many contexts
  bool part_of_mean = false;             // what evictions left of such a piece
  std::vector<TokenSpread> spread = {};  // by token, of a mean over two contexts or more
  bool replaced =
      false;  // newer KV of the same tokens will take its place: it is not kept on disk (engine/disk_cache.h)
  bool in_tree() const { return found_as == FoundAs::kChain || (exact && found_as == FoundAs::kBoth); }
};

// The key spaces of one namespace in which a request looks, and to which it publishes; 0: neither.
struct ContentDomains {
  DomainId exact = 0;        // KV that equals a full prefill of its chain
  DomainId approximate = 0;  // pieces that requests of one policy computed after others' pieces
  DomainId chain = 0;        // whole prompts as requests of one policy left them
  DomainId repaired = 0;     // others' pieces as one policy repaired them last
  DomainId seasoned = 0;     // marked parts as the mean over their contexts
  // Those of the other namespaces that it named, in that order: it looks there too, and leaves nothing there.
  std::vector<ContentDomains> also = {};

  bool operator==(const ContentDomains&) const = default;
  // Calls visitor(domains) for this namespace, then for the others.
  template <class Visitor>
  void each(Visitor&& visitor) const {
    visitor(*this);
    for (const ContentDomains& other : also) visitor(other);
  }
  // Whether exact KV of that domain is found.
  bool sees(DomainId exact_domain) const {
    return exact == exact_domain ||
           std::ranges::any_of(also, [&](const ContentDomains& other) { return other.exact == exact_domain; });
  }
};

// Where a chain of segments from position 0 ends: after `tokens` tokens of `segment`, at position pos.
struct ChainEnd {
  SegmentId segment = 0;
  int32_t tokens = 0, pos = 0;
};

// A known part of a prompt: `count` tokens from pos on equal those of `segment` from its token segment_offset on.
struct Piece {
  SegmentId segment = 0;
  int32_t segment_offset = 0, count = 0, pos = 0;
  bool operator==(const Piece&) const = default;
};

// Of a chain's pieces, the first of them at position 0.
inline ChainEnd end_of(const std::vector<Piece>& chain) {
  if (chain.empty()) return {};
  const Piece& last = chain.back();
  return {last.segment, last.segment_offset + last.count, last.pos + last.count};
}

// Segments that are means over contexts: how many are means over so many (the last: or more), and their tokens.
struct SeasonedCount {
  std::array<int64_t, kMostContexts + 1> by_contexts{};
  int64_t tokens = 0;
};

// What a request has published of its prompt: segments of its own KV, of which the last one may be extended when the
// answer ends, and the chain that the answer continues.
struct PublishedPrompt {
  std::vector<SegmentId> segments;
  ChainEnd chain;
};

}  // namespace kvilt
