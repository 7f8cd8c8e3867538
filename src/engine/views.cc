// engine/views.cc: what a request found in other namespaces than its own becomes known in its own, without a copy.
// Idea:       a view is a cached segment of the request's own domain whose parts are those of the segment that was found
//             (SparseX's virtual blocks, docs/papers.md#sparsex). It is found, evicted and told of like any other; its
//             extents name both segments, so the KV stays as long as one of them does, and an eviction takes both.
// Invariants: what a request leaves in its namespace is its own prompt, whether it computed it or found it. A view has
//             tokens of that prompt and no others. So nobody finds in a namespace what no request had there.
// Cost:       tokens and keys of the index, once a namespace; no pages. All views together have at most as many tokens as
//             the pool: those leave first that were found longest ago, and take no KV with them.
// Not here:   the tier: a view is written only where its segment is gone, or with what continues it (spill.cc).
#include <algorithm>

#include "engine/content_cache.h"

namespace kvilt {

std::vector<Piece> ContentCache::elsewhere(const Found& found, const ContentDomains& domains) const {
  std::vector<Piece> out;
  for (const Piece& piece : found.known) {
    const DomainId of = index_.info(piece.segment).domain;
    const bool placed = piece.pos < found.layout.prefix || contains(found.layout.pieces, piece.pos);
    if (placed && std::ranges::any_of(domains.also, [&](const ContentDomains& other) {
          return of != 0 && (of == other.exact || of == other.approximate);
        }))
      out.push_back(piece);
  }
  return out;
}

// The exact prefix first, as far as the own namespace lacks it: what the request computed continues that.
void ContentCache::add_views(const Own& own) {
  if (own.elsewhere.empty()) return;
  const int32_t prefix = own.chain.pos > 0 ? 0 : own.layout.prefix;
  // What an earlier part of the request was published as is known by now.
  const int32_t last = std::min({own.computed, own.layout.exact_end(), static_cast<int32_t>(own.tokens.size())});
  const int32_t so_far = prefix == 0 ? 0 : std::max(prefix, last);
  ChainEnd end = end_of(index_.find_prefix(own.tokens.first(static_cast<size_t>(so_far)), own.domains.exact, so_far));
  for (Piece piece : own.elsewhere) {
    const CachedSegment* const source = segments_.find(piece.segment);
    if (!source || source->count < piece.segment_offset + piece.count) continue;  // it left, or lost its end
    if (piece.pos >= own.layout.prefix) {
      const auto tokens = own.tokens.subspan(static_cast<size_t>(piece.pos), static_cast<size_t>(piece.count));
      const bool exact = index_.info(piece.segment).exact;
      const DomainId to = exact ? own.domains.exact : own.domains.approximate;
      if (to != 0 && !copy_of(tokens, to)) add_view(own, piece, {});
      continue;
    }
    if (piece.pos + piece.count == own.layout.prefix) {  // it may hold the last token too, which is never a prefix
      const auto more = own.tokens.subspan(static_cast<size_t>(own.layout.prefix),
                                           static_cast<size_t>(std::max(0, last - own.layout.prefix)));
      piece.count += common_prefix(
          index_.text(piece.segment).subspan(static_cast<size_t>(piece.segment_offset + piece.count)), more);
    }
    const int32_t there = end.pos - piece.pos;
    if (there < 0 || there >= piece.count) continue;  // it follows what left, or is known
    end = add_view(own, {piece.segment, piece.segment_offset + there, piece.count - there, end.pos}, end);
  }
  while (segments_.view_tokens() > pool_tokens()) erase(segments_.oldest_view());
}

// Of the piece's segment, in the request's own domain. behind: where the chain ends that an exact prefix continues.
ChainEnd ContentCache::add_view(const Own& own, const Piece& piece, const ChainEnd& behind) {
  const CachedSegment& source = *segments_.find(piece.segment);
  const SegmentInfo& of = index_.info(piece.segment);
  const Run run{piece.segment_offset, piece.segment_offset + piece.count};
  const bool prefix = piece.pos < own.layout.prefix;
  SegmentInfo info{{of.tokens.begin() + run.begin, of.tokens.begin() + run.end},
                   of.exact ? own.domains.exact : own.domains.approximate,
                   of.exact};
  if (prefix) {
    info.parent = behind.segment;
    info.parent_tokens = behind.tokens;
  } else if (of.exact) {
    info.found_as = FoundAs::kPieces;
  }
  const Runs marks = whole_within(index_.marks(piece.segment), run);
  const std::vector<CleanNote> clean = whole_within(index_.clean_notes(piece.segment), run);
  CachedSegment view{segments_.next_id(),
                     source.pos + run.begin,
                     run.size(),
                     false,
                     source.within(run.begin, run.size()),
                     source.request,
                     source.view_of != 0 ? source.view_of : source.id};
  const SegmentId id = view.id;
  enter(std::move(view), std::move(info), marks);
  if (!index_.contains(id)) return behind;
  for (const CleanNote& note : clean) index_.add_clean(id, note);
  return {id, run.size(), piece.pos + run.size()};
}

}  // namespace kvilt
