// engine/adopt.cc: ContentCache::adopt: what comes back from disk becomes a cached segment again.
#include <algorithm>

#include "base/check.h"
#include "engine/content_cache.h"

namespace kvilt {

int32_t ContentCache::Found::tokens_of(const std::vector<SegmentId>& segments) const {
  int32_t out = 0;
  for (const Piece& piece : known) {
    const bool placed = piece.pos < layout.prefix || contains(layout.pieces, piece.pos);
    if (placed && std::ranges::find(segments, piece.segment) != segments.end()) out += piece.count;
  }
  return out;
}

// It continues the chain only if all of that is cached now: what it continued may have left while it was read.
SegmentId ContentCache::adopt(const PageTable& kv, Run positions, const Returned& returned) {
  CHECK(static_cast<int32_t>(returned.tokens.size()) == positions.size());
  SegmentInfo info{{returned.tokens.begin(), returned.tokens.end()}, returned.domain, returned.exact};
  if (returned.exact) info.found_as = FoundAs::kPieces;
  if (returned.exact && returned.continues) {
    const auto before = *returned.continues;
    const auto size = static_cast<int32_t>(before.size());
    const std::vector<Piece> chain = index_.find_prefix(before, returned.domain, size, returned.reach);
    if (const ChainEnd end = end_of(chain); end.pos == size) {
      info.found_as = FoundAs::kBoth;
      info.parent = end.segment;
      info.parent_tokens = end.tokens;
    }
  }
  const SegmentId id = segments_.next_id();
  const SegmentPart part{kv.publish(positions), 0, positions.size(), positions.begin};
  enter({id, positions.begin, positions.size(), false, {part}}, std::move(info), returned.marks);
  if (!index_.contains(id)) return 0;
  for (const CleanNote& note : returned.clean) index_.add_clean(id, note);
  return id;
}

}  // namespace kvilt
