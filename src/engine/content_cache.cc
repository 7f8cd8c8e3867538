#include "engine/content_cache.h"

#include <algorithm>

#include "base/check.h"
#include "index/clip_pieces.h"

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

// Clean copies, and around them what `others` have of the text `within`.
std::vector<Piece> combine(const std::vector<Piece>& clean, std::vector<Piece> others, Runs within,
                           const ClipRules& rules) {
  std::vector<Piece> out = clip_pieces(clean, Runs{{rules.from, INT32_MAX}}, rules);
  Runs taken;
  for (const Piece& piece : out) taken.push_back({piece.pos, piece.pos + piece.count});
  others = clip_pieces(others, subtract(within, normalize(taken)), rules);
  out.insert(out.end(), others.begin(), others.end());
  std::ranges::sort(out, {}, &Piece::pos);
  return out;
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
  Runs ranges;
  for (const TokenMark& mark : marks) ranges.push_back({mark.begin, mark.end});
  std::vector<Piece> clean;
  if (wanted.segments || wanted.make_clean) clean = index_.find_clean(prompt, domain, ranges);
  if (wanted.make_clean && !ranges.empty() && (clean.empty() || clean[0].pos != ranges[0].begin))
    cut_pieces(prefix, found.layout.prefix = std::min(found.layout.prefix, ranges[0].begin));
  if (wanted.segments) {
    if (!wanted.clean_only) segments = index_.find_pieces(prompt, found.layout.prefix, domain, min_segment_, ranges);
    if (!wanted.unmarked || !clean.empty()) {
      const bool use_clean = wanted.clean_only || wanted.repaired == 0;
      segments = combine(use_clean ? clean : std::vector<Piece>(), std::move(segments),
                         wanted.unmarked ? Runs{{0, found.layout.prompt_len}} : normalize(ranges),
                         {ranges, found.layout.prefix, min_segment_});
    }
    // The last position is computed in any case; as a piece of its own it would only make an exact prompt approximate.
    std::erase_if(segments, [&](const Piece& piece) { return piece.pos + 1 == found.layout.prompt_len; });
    if (wanted.repaired != 0 && !wanted.clean_only) {
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

std::vector<TokenMark> ContentCache::without_clean_copy(std::span<const int32_t> prompt,
                                                        std::span<const TokenMark> marks, DomainId domain) const {
  Runs ranges;
  for (const TokenMark& mark : marks) {
    if (mark.end - mark.begin >= min_segment_) ranges.push_back({mark.begin, mark.end});
  }
  const std::vector<Piece> clean = index_.find_clean(prompt, domain, ranges);
  std::vector<TokenMark> out;
  auto have = clean.begin();
  for (const Run& range : ranges) {
    if (have != clean.end() && have->pos == range.begin) {
      ++have;
    } else {
      out.push_back({range.begin, range.end});
    }
  }
  return out;
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
  index_.insert(id, {tokens, domain, exact, parent.segment, parent.tokens});
  segments_.insert(own.kv.publish(id, positions, std::move(tokens), exact));
  for (const TokenMark& mark : own.marks) {
    if (mark.begin >= positions.begin && mark.end <= positions.end && mark.begin < mark.end) {
      index_.add_mark(id, mark.begin - positions.begin, mark.end - positions.begin);
    }
  }
  // The first marked part of an exact chain has the prompt's beginning before it and nothing else.
  if (exact && !own.marks.empty()) {
    const Run first_mark{own.marks[0].begin, own.marks[0].end};
    if (first_mark.begin >= positions.begin && first_mark.end <= positions.end)
      index_.add_clean(id, first_mark.begin - positions.begin, own.tokens, first_mark);
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
    const bool marked =
        std::ranges::any_of(own.marks, [&](const TokenMark& m) { return m.begin >= run.begin && m.end <= run.end; });
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
    if (intersect(own.recomputed, Runs{piece}).empty() || !own.kv.owns(piece)) continue;
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
