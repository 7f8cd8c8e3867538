#include "engine/content_cache.h"

#include <algorithm>
#include <new>

#include "base/check.h"

namespace kvilt {

ContentCache::ContentCache(PageStore store, const HashSecret& secret, std::string fingerprint, int min_segment)
    : store_(std::move(store)),
      index_(secret, ContentIndexOptions::for_min_tokens(min_segment)),
      fingerprint_(std::move(fingerprint)),
      min_segment_(min_segment) {}

std::shared_ptr<const KvSegment> ContentCache::use(SegmentId id) {
  segments_.touch(id);
  auto segment = segments_.find(id);
  CHECK(segment);  // the index forgets what is evicted
  return segment;
}

namespace {
// A marked part with fewer tokens is neither kept nor placed as a piece: the seams beside it cost more than to compute
// it, and each has its share of every table. A piece that was cut keeps half of the shortest unmarked one.
int32_t shortest_marked(int min_segment) { return std::min(8, (min_segment + 1) / 2); }

// Keeps what is before `end`.
void cut_pieces(std::vector<Piece>& pieces, int32_t end) {
  while (!pieces.empty() && pieces.back().pos >= end) pieces.pop_back();
  if (!pieces.empty()) pieces.back().count = std::min(pieces.back().count, end - pieces.back().pos);
}

// A piece that one of `better` holds whole comes from there. Both lists are sorted and disjoint.
void take_from(const std::vector<Piece>& better, std::vector<Piece>& pieces) {
  auto with = better.begin();
  for (Piece& piece : pieces) {
    while (with != better.end() && with->pos + with->count < piece.pos + piece.count) ++with;
    if (with == better.end()) return;
    if (with->pos <= piece.pos)
      piece = {with->segment, with->segment_offset + piece.pos - with->pos, piece.count, piece.pos};
  }
}

// The marks that lie in `run`; marks are sorted and disjoint.
std::span<const TokenMark> marks_in(std::span<const TokenMark> marks, Run run) {
  const auto first = std::ranges::lower_bound(marks, run.begin, {}, &TokenMark::begin);
  const auto end = std::partition_point(first, marks.end(), [&](const TokenMark& m) { return m.end <= run.end; });
  return {first, end};
}
}  // namespace

ContentCache::Found ContentCache::find(std::span<const int32_t> prompt, std::span<const TokenMark> marks,
                                       DomainId domain, Wanted wanted) {
  Found found;
  found.layout.prompt_len = static_cast<int32_t>(prompt.size());
  if (!marks.empty()) found.layout.question = marks.back().end;
  std::vector<Piece> prefix, segments;
  if (wanted.prefix) prefix = index_.find_prefix(prompt, domain, found.layout.prompt_len - 1);
  if (!prefix.empty()) found.layout.prefix = prefix.back().pos + prefix.back().count;
  // Two documents that begin alike: a few tokens of a marked part are worth less than a whole piece for later requests.
  for (const TokenMark& mark : marks) {
    const int32_t inside = found.layout.prefix - mark.begin;
    if (inside > 0 && found.layout.prefix < mark.end && inside < min_segment_)
      cut_pieces(prefix, found.layout.prefix = mark.begin);
  }
  if (wanted.segments) {
    Runs ranges;
    for (const TokenMark& mark : marks) ranges.push_back({mark.begin, mark.end});
    segments = index_.find_pieces(prompt, found.layout.prefix, domain, min_segment_, ranges);
    // The last position is computed in any case; as a piece of its own it would only make an exact prompt approximate.
    // As are marked parts of a few tokens.
    const int32_t shortest = shortest_marked(min_segment_);
    std::erase_if(segments, [&](const Piece& piece) {
      return piece.pos + 1 == found.layout.prompt_len || piece.count < shortest;
    });
    if (wanted.repaired != 0) {
      const auto from_last = index_.find_pieces(prompt, found.layout.prefix, wanted.repaired, min_segment_, ranges);
      take_from(from_last, segments);
    }
  }
  for (const auto& list : {prefix, segments}) {
    for (const Piece& piece : list)
      found.placements.push_back({segments_.find(piece.segment), piece.segment_offset, piece.count, piece.pos});
  }
  for (const Piece& piece : segments) found.layout.pieces.push_back({piece.pos, piece.pos + piece.count});
  // Children before parents, so that a parent is never older than what continues it.
  for (auto it = found.placements.rbegin(); it != found.placements.rend(); ++it) use(it->segment->id);
  return found;
}

bool ContentCache::make_room(int64_t pages) {
  const int64_t missing = pages - store_.free_pages();
  if (missing > 0 && segments_.reclaimable(missing) < missing) return false;  // nothing is dropped in vain
  while (store_.free_pages() < pages) {
    const auto id = segments_.evict();
    if (!id) return false;
    index_.erase(*id);
    ++evicted_;
  }
  return true;
}

SegmentId ContentCache::insert(const Own& own, DomainId domain, Run positions, bool exact, Parent parent) {
  const auto first = own.tokens.begin() + positions.begin;
  std::vector<int32_t> tokens(first, first + positions.size());
  const SegmentId id = segments_.next_id();
  segments_.insert(own.kv.publish(id, positions, tokens, exact));  // first: the index names nothing that is not there
  try {
    index_.insert(id, {std::move(tokens), domain, exact, parent.segment, parent.tokens});
    for (const TokenMark& mark : marks_in(own.marks, positions)) {
      if (mark.end - mark.begin >= shortest_marked(min_segment_))
        index_.add_mark(id, mark.begin - positions.begin, mark.end - positions.begin);
    }
  } catch (const std::bad_alloc&) {
    index_.erase(id);
    segments_.erase(id);
    throw;
  }
  return id;
}

// What was just inserted continues the prefix, whose segments must not leave before it: they become the most recent.
void ContentCache::touch_prefix(const Own& own) {
  const auto placed = own.kv.placements();
  for (auto it = placed.rbegin(); it != placed.rend(); ++it) {
    if (it->pos < own.layout.prefix) segments_.touch(it->segment->id);
  }
}

// The segment that ends the chain of tokens [0, end), if that is cached: another request published the same meanwhile,
// or this one was told not to look. Keeping it twice would only take room. (Marks are of a segment: with some, it is
// kept anew.)
std::optional<SegmentId> ContentCache::known_exactly(const Own& own, int32_t end) {
  if (!own.marks.empty()) return {};
  const std::vector<Piece> pieces = index_.find_prefix(own.tokens.first(end), own.domain, end);
  if (pieces.empty() || pieces.back().pos + pieces.back().count != end) return {};
  const Piece& last = pieces.back();
  if (std::ssize(segments_.find(last.segment)->tokens) != last.segment_offset + last.count) return {};
  for (auto it = pieces.rbegin(); it != pieces.rend(); ++it) segments_.touch(it->segment);
  return last.segment;
}

std::vector<SegmentId> ContentCache::publish_prompt(const Own& own) {
  const PromptLayout& layout = own.layout;
  std::vector<SegmentId> out;
  if (!own.kv.whole()) return out;
  // The exact part: [prefix, first piece), and all of it if there is no piece.
  const int32_t exact_end = layout.pieces.empty() ? layout.prompt_len : layout.pieces.front().begin;
  if (const auto known = exact_end > layout.prefix ? known_exactly(own, exact_end) : std::nullopt) {
    out.push_back(*known);
  } else if (exact_end > layout.prefix) {
    Parent parent;
    for (const Placement& placement : own.kv.placements()) {
      if (placement.pos + placement.count == layout.prefix)
        parent = {placement.segment->id, placement.offset + placement.count};
    }
    out.push_back(insert(own, own.domain, {layout.prefix, exact_end}, true, parent));
    touch_prefix(own);
  }
  for (const Run& run : layout.fresh()) {
    const bool marked = std::ranges::any_of(marks_in(own.marks, run), [&](const TokenMark& mark) {
      return mark.end - mark.begin >= shortest_marked(min_segment_);
    });
    if (run.begin >= exact_end && (run.size() >= min_segment_ || marked))
      out.push_back(insert(own, own.domain, run, false, {}));
  }
  if (own.repaired != 0) publish_repaired(own);
  return out;
}

// A policy that carries changes over to a piece's other tokens leaves all of the piece in the request's own pages.
// Nothing is kept of a piece whose KV is in part still that of its first build: it would have to be copied.
void ContentCache::publish_repaired(const Own& own) {
  for (const Run& piece : own.layout.pieces) {
    const auto next = std::ranges::upper_bound(own.recomputed, piece.begin, {}, &Run::end);
    if (next == own.recomputed.end() || next->begin >= piece.end || !own.kv.owns(piece)) continue;
    const auto tokens = own.tokens.subspan(piece.begin, piece.size());
    const Run whole{0, piece.size()};
    for (const Piece& last : index_.find_pieces(tokens, 0, own.repaired, min_segment_, {&whole, 1})) {
      if (last.count != piece.size() || segments_.find(last.segment)->tokens.size() != tokens.size()) continue;
      index_.erase(last.segment);
      segments_.erase(last.segment);
    }
    insert(own, own.repaired, piece, false, {});
  }
}

void ContentCache::publish_answer(const Own& own, std::span<const SegmentId> of_prompt) {
  const PromptLayout& layout = own.layout;
  if (own.computed <= layout.prompt_len || !own.kv.whole()) return;
  const auto last = of_prompt.empty() ? nullptr : segments_.find(of_prompt.back());
  if (layout.pieces.empty()) {
    if (!last) return;  // evicted meanwhile: the chain is broken
    if (known_exactly(own, own.computed)) return;
    insert(own, own.domain, {layout.prompt_len, own.computed}, true,
           {last->id, static_cast<int32_t>(last->tokens.size())});
    segments_.touch(last->id);
    touch_prefix(own);
    return;
  }
  const Runs fresh = layout.fresh();
  Run whole{layout.prompt_len, own.computed};
  if (!fresh.empty() && fresh.back().end == layout.prompt_len) whole.begin = fresh.back().begin;
  if (whole.size() < min_segment_) return;
  if (last && !last->exact && last->pos == whole.begin) {
    index_.erase(last->id);
    segments_.erase(last->id);
  }
  insert(own, own.domain, whole, false, {});
}

void ContentCache::clear() {
  while (const auto id = segments_.evict()) index_.erase(*id);
}

}  // namespace kvilt
