#include "engine/content_cache.h"

#include <algorithm>
#include <new>

#include "base/check.h"
#include "engine/mark_runs.h"
#include "engine/piece_lists.h"
#include "forward/annex_rows.h"
#include "index/clip_pieces.h"
#include "index/look_alikes.h"

namespace kvilt {

ContentCache::ContentCache(PageStore store, const HashSecret& secret, std::string fingerprint, int min_segment)
    : store_(std::move(store)),
      index_(secret, ContentIndexOptions::for_min_tokens(min_segment)),
      fingerprint_(std::move(fingerprint)),
      min_segment_(min_segment),
      ghosts_(static_cast<size_t>(pool_tokens() / ChainIndex::kBlockTokens)) {}

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

// Clean copies, or means over contexts, and around them what `others` have of the text `within`.
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

// Of one prompt, for its pieces.
struct ContentCache::Search {
  std::span<const int32_t> prompt;
  int32_t prefix;
  const Runs& marks;
  const std::vector<Piece>& clean;  // those of the marks that have a clean copy
  const ContentDomains& domains;
  const Wanted& wanted;
  SearchCost& cost;
};

// The clean copies of marks: of each the one in the namespace that was named first.
std::vector<Piece> ContentCache::find_clean(std::span<const int32_t> prompt, std::span<const Run> marks,
                                            const ContentDomains& domains) const {
  std::vector<Piece> out;
  domains.each([&](const ContentDomains& of) { fill_gaps(index_.find_clean(prompt, of.exact, marks), 1, out); });
  return out;
}

std::vector<Piece> ContentCache::find_pieces(const Search& search) const {
  const auto& [prompt, prefix, marks, all_clean, domains, wanted, cost] = search;
  if (!wanted.unmarked && marks.empty()) return {};  // there is no text that they may be of
  const auto in = [&, prompt = prompt, prefix = prefix, &marks = marks, &domains = domains,
                   &cost = cost](DomainId ContentDomains::*kind) {
    std::vector<Piece> out;
    domains.each([&](const ContentDomains& of) {
      if (of.*kind != 0)
        fill_gaps(index_.find_pieces(prompt, prefix, of.*kind, min_segment_, marks, &cost), min_segment_, out);
    });
    return out;
  };
  const int32_t T = static_cast<int32_t>(prompt.size()), shortest = shortest_marked(min_segment_);
  const Runs within = wanted.unmarked ? Runs{{0, T}} : normalize(marks);
  const ClipRules rules{marks, prefix, min_segment_};
  std::vector<Piece> pieces, seasoned, clean = all_clean;
  if (!wanted.clean_only) {
    pieces = in(&ContentDomains::exact);
    if (wanted.seasoned) {
      if (index_.seasoned().tokens > 0) seasoned = find_means(prompt, rules, domains, cost);
      // An exact copy in this very context comes before its mean, and then before its clean copy too.
      const auto here = [&, prompt = prompt](const Piece& other) {
        return in_same_context(prompt, {other.pos, other.pos + other.count}, pieces);
      };
      std::erase_if(seasoned, here);
      std::erase_if(clean, here);
    }
    fill_gaps(in(&ContentDomains::approximate), min_segment_, pieces);
  }
  if (!wanted.unmarked || !clean.empty()) {
    const bool use_clean = wanted.clean_only || domains.repaired == 0;
    pieces = combine(use_clean ? clean : std::vector<Piece>(), std::move(pieces), within, rules);
  }
  if (!seasoned.empty()) {  // a part of another document's mean is no better than what there is
    std::vector<Piece> parts = clip_pieces(seasoned, within, rules);
    const auto others =
        std::stable_partition(parts.begin(), parts.end(), [&](const Piece& piece) { return is_whole(piece, rules); });
    pieces = combine(std::vector<Piece>(parts.begin(), others), std::move(pieces), within, rules);
    fill_gaps(std::vector<Piece>(others, parts.end()), min_segment_, pieces);
  }
  // The last position is computed in any case; as a piece of its own it would only make an exact prompt approximate.
  // As are marked parts of a few tokens.
  std::erase_if(pieces, [&](const Piece& piece) { return piece.pos + 1 == T || piece.count < shortest; });
  if (domains.repaired != 0 && !wanted.clean_only) take_from(in(&ContentDomains::repaired), pieces);
  return pieces;
}

// Where `pieces` leave room: what is equal in a text that nearly repeats a segment, exact KV before approximate. The end
// of the prompt is what the answer hangs on: it is computed. Returns what came to the pieces so.
Runs ContentCache::add_near(const Search& search, std::vector<Piece>& pieces) const {
  const int32_t least = std::max(search.wanted.near, shortest_marked(min_segment_));
  Runs within = normalize({{search.prefix, static_cast<int32_t>(search.prompt.size()) - min_segment_}});
  if (!search.wanted.unmarked) within = intersect(within, normalize(search.marks));
  Runs added;
  std::vector<DomainId> where;
  search.domains.each([&](const ContentDomains& of) { where.push_back(of.exact); });
  search.domains.each([&](const ContentDomains& of) { where.push_back(of.approximate); });
  for (const DomainId domain : where) {
    if (domain == 0) continue;
    for (const Piece& piece : index_.find_near({search.prompt, within, pieces, least, min_segment_}, domain)) {
      if (piece.count < least) continue;  // an overlap was cut
      pieces.push_back(piece);
      added.push_back({piece.pos, piece.pos + piece.count});
    }
    std::ranges::sort(pieces, {}, &Piece::pos);
  }
  return normalize(std::move(added));
}

ContentCache::Found ContentCache::find(std::span<const int32_t> prompt, std::span<const TokenMark> marks,
                                       const ContentDomains& domains, Wanted wanted) {
  Found found;
  PromptLayout& layout = found.layout;
  layout.prompt_len = static_cast<int32_t>(prompt.size());
  if (!marks.empty()) layout.question = marks.back().end;
  // Two documents that begin alike: a few tokens of a marked part are worth less than a whole piece for later requests.
  const auto longest = [&](DomainId ContentDomains::*kind) {
    std::vector<Piece> best;
    domains.each([&](const ContentDomains& of) {
      std::vector<Piece> chain = index_.find_prefix(prompt, of.*kind, layout.prompt_len - 1);
      const int32_t end = end_of(chain).pos;
      const auto mark = std::ranges::upper_bound(marks, end, {}, &TokenMark::end);
      if (mark != marks.end() && mark->begin < end && end - mark->begin < min_segment_) {
        found.begun = unite(found.begun, Runs{{mark->begin, end}});
        cut_pieces(chain, mark->begin);
      }
      if (end_of(chain).pos > end_of(best).pos) best = std::move(chain);
    });
    return best;
  };
  const Runs ranges = runs_of(marks);
  std::vector<Piece> pieces, clean;
  if (wanted.prefix) found.known = longest(&ContentDomains::exact);
  if (wanted.pieces || wanted.make_clean) clean = find_clean(prompt, ranges, domains);
  if (wanted.make_clean && !ranges.empty() && (clean.empty() || clean[0].pos != ranges[0].begin))
    cut_pieces(found.known, ranges[0].begin);
  found.exact = end_of(found.known);
  layout.prefix = found.exact.pos;
  if (wanted.prefix && domains.chain != 0) {
    std::vector<Piece> chain = longest(&ContentDomains::chain);
    // The same prompt again: its last rows choose as they did, in their block or where that turn began in it.
    if (wanted.chosen_by > 0 && !chain.empty() && end_of(chain).pos + 1 == layout.prompt_len)
      cut_pieces(chain, std::max(chain.back().pos, (layout.prompt_len - 1) / wanted.chosen_by * wanted.chosen_by));
    if (end_of(chain).pos >= layout.prefix + kChainGain) {
      found.known = std::move(chain);
      found.chain = end_of(found.known);
      layout.prefix = found.chain.pos;
    }
  }
  const Search search{prompt, layout.prefix, ranges, clean, domains, wanted, found.cost};
  if (wanted.pieces) pieces = find_pieces(search);
  if (wanted.pieces && wanted.near > 0 && !wanted.clean_only) {
    if (!index_.keeps_near()) {
      index_.keep_near();
      index_.near_more(kNearTokens);  // the newest; the others come between steps
    }
    found.near = add_near(search, pieces);
    layout.near = static_cast<int32_t>(count(found.near));
  }
  for (const Piece& piece : pieces) {
    layout.pieces.push_back({piece.pos, piece.pos + piece.count});
    const SegmentInfo& info = index_.info(piece.segment);
    if (info.contexts > 0) layout.seasoned += piece.count;
    if (!info.spread.empty()) {
      layout.spread.resize(prompt.size());
      std::copy_n(info.spread.begin() + piece.segment_offset, piece.count, layout.spread.begin() + piece.pos);
    }
    if (wanted.shared_context > 0)
      layout.shared_context.push_back(index_.shared_context(prompt, piece, wanted.shared_context));
  }
  if (wanted.look_alikes) measure_look_alikes(prompt, layout);
  found.known.insert(found.known.end(), pieces.begin(), pieces.end());
  for (const Piece& piece : found.known) {
    const CachedSegment* segment = segments_.find(piece.segment);
    CHECK(segment);  // the index forgets what leaves
    std::vector<Placement> parts;
    segment->place(piece.segment_offset, piece.count, piece.pos, parts);
    for (Placement& part : parts)
      (part.segment->whole() ? found.placements : found.overlays).push_back(std::move(part));
  }
  for (auto it = found.known.rbegin(); it != found.known.rend(); ++it) {  // what begins leaves last
    if (segments_.find(it->segment)->view_of != 0) segments_.renew(it->segment);
  }
  return found;
}

void ContentCache::measure_look_alikes(std::span<const int32_t> prompt, PromptLayout& layout) {
  LookAlikes found = look_alikes(prompt, layout.pieces);
  layout.look_alikes = found.all;
  layout.piece_look_alikes = std::move(found.parts);
}

PromptPatch ContentCache::patch_of(const Piece& piece, PatchKind kind) const {
  const CachedSegment& segment = *segments_.find(piece.segment);
  const SegmentInfo& info = index_.info(piece.segment);
  PromptPatch out{.kind = kind, .begin = piece.pos, .count = piece.count};
  out.segment = piece.segment;
  out.request = segment.request;
  out.offset = piece.segment_offset;
  out.shift = piece.pos - (segment.pos + piece.segment_offset);
  out.exact = info.exact;
  out.chain = segment.chain;
  out.seasoned = info.contexts;
  return out;
}

std::vector<TokenMark> ContentCache::without_clean_copy(std::span<const int32_t> prompt,
                                                        std::span<const TokenMark> marks,
                                                        const ContentDomains& domains) const {
  Runs ranges;
  for (const TokenMark& mark : marks) {
    if (mark.end - mark.begin >= min_segment_) ranges.push_back({mark.begin, mark.end});
  }
  const std::vector<Piece> clean = find_clean(prompt, ranges, domains);
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

// ---- What comes -----------------------------------------------------------------------------------------------------

// Whether a segment of the run keeps the mark.
bool ContentCache::keeps(const TokenMark& mark, Run run) const {
  return mark.begin >= run.begin && mark.end <= run.end && mark.end - mark.begin >= shortest_marked(min_segment_);
}

// The KV first: the index names nothing that is not there. What the index cannot find is not cached: a client may name
// thousands of salts while a request waits, and the domain of its own is forgotten then.
void ContentCache::enter(CachedSegment segment, SegmentInfo info, const Runs& marks) {
  const SegmentId id = segment.id;
  segments_.insert(std::move(segment));
  try {
    if (index_.insert(id, std::move(info))) {
      for (const Run& mark : marks) index_.add_mark(id, mark.begin, mark.end);
      if (on_enter_) on_enter_(id);
      return;
    }
  } catch (const std::bad_alloc&) {
    erase(id);
    throw;
  }
  erase(id);
}

SegmentId ContentCache::insert(const Own& own, DomainId domain, Run positions, bool exact, Parent parent) {
  const auto first = own.tokens.begin() + positions.begin;
  const SegmentId id = segments_.next_id();
  Runs marks;
  for (auto mark = std::ranges::lower_bound(own.marks, positions.begin, {}, &TokenMark::begin);
       mark != own.marks.end() && mark->begin < positions.end; ++mark) {
    if (keeps(*mark, positions)) marks.push_back({mark->begin - positions.begin, mark->end - positions.begin});
  }
  const SegmentPart part{own.kv.publish(positions), 0, positions.size(), positions.begin};
  SegmentInfo info{{first, first + positions.size()}, domain, exact, parent.segment, parent.tokens};
  info.replaced = domain == own.domains.repaired;
  enter({id, positions.begin, positions.size(), false, {part}, own.request}, std::move(info), marks);
  // The first marked part of an exact chain has the prompt's beginning before it and nothing else.
  if (exact && !own.marks.empty() && keeps(own.marks[0], positions) && index_.contains(id)) {
    const Run mark{own.marks[0].begin, own.marks[0].end};
    index_.add_clean(id, mark.begin - positions.begin, own.tokens, mark);
  }
  if (exact && index_.contains(id)) regret(id, part, own.kv.owner());
  if (!own.kept.empty() && index_.contains(id)) attach_kept(own, *part.kv);
  return id;
}

// What the plan keeps of the segment's tokens becomes its annex (kv/annex.h); without room the segment has none. Annexes
// stay as long as somebody uses their extents: they take no page that a running request counts on.
void ContentCache::attach_kept(const Own& own, const KvSegment& kv) {
  int64_t spare = own.spare;
  for (KeptRows& kept : own.kept) {
    for (const Run& run : intersect(kept.rows.rows(), Runs{kv.positions()})) {
      const std::vector<std::byte> bytes = bytes_of(kept, run);
      const int64_t pages = kv.pages_to_attach(kept.kind, run, std::ssize(bytes));
      if (pages > spare || !make_room(pages, own.kv.owner())) continue;
      kv.attach(kept.kind, run, bytes);
      spare -= pages;
    }
  }
}

void ContentCache::attach(const PageTable& kv, const AnnexBlock& block, int64_t spare) {
  for (const Placement& placed : kv.first_placements()) {
    if (!includes(Runs{placed.positions()}, Runs{block.positions})) continue;
    const Run there{block.positions.begin - placed.shift(), block.positions.end - placed.shift()};
    const KvSegment& segment = *placed.segment;
    const int64_t pages = segment.pages_to_attach(block.kind, there, std::ssize(block.bytes));
    if (pages <= spare && make_room(pages, kv.owner())) segment.attach(block.kind, there, block.bytes);
    return;
  }
}

// The segment that ends the chain of tokens [0, end), if that is cached: another request published the same meanwhile,
// or this one was told not to look. Keeping it twice would only take room. What this request marks of it is marked
// there; a mark that lies in two of its segments can only be kept with a segment of its own.
std::optional<SegmentId> ContentCache::known_exactly(const Own& own, int32_t end) {
  const std::vector<Piece> pieces = index_.find_prefix(own.tokens.first(end), own.domains.exact, end, own.exact);
  if (end_of(pieces).pos != end ||
      index_.info(pieces.back().segment).tokens.size() != static_cast<size_t>(end_of(pieces).tokens))
    return {};
  std::vector<std::pair<const Piece*, TokenMark>> marks;
  auto piece = pieces.begin();
  for (const TokenMark& mark : own.marks) {
    if (!keeps(mark, {own.layout.prefix, end})) continue;
    while (piece->pos + piece->count <= mark.begin) ++piece;
    if (mark.end > piece->pos + piece->count) return {};
    marks.emplace_back(&*piece, mark);
  }
  for (const auto& [of, mark] : marks) {
    const int32_t by = of->segment_offset - of->pos;
    index_.add_mark(of->segment, mark.begin + by, mark.end + by);
    if (mark.begin == own.marks[0].begin)
      index_.add_clean(of->segment, mark.begin + by, own.tokens, {mark.begin, mark.end});
  }
  for (auto it = pieces.rbegin(); it != pieces.rend(); ++it) segments_.touch(it->segment);
  return pieces.back().segment;
}

// What the request marks of its exact prefix is marked there: who left it may not have said where its parts end. A mark
// that lies in two segments is not.
void ContentCache::mark_prefix(const Own& own) {
  const int32_t end = std::min(own.exact.pos, own.layout.prefix);
  if (own.marks.empty() || own.marks.front().end > end) return;
  const std::vector<Piece> pieces = index_.find_prefix(own.tokens.first(end), own.domains.exact, end);
  auto piece = pieces.begin();
  for (const TokenMark& mark : own.marks) {
    while (piece != pieces.end() && piece->pos + piece->count <= mark.begin) ++piece;
    if (piece == pieces.end()) return;
    if (!keeps(mark, {piece->pos, piece->pos + piece->count})) continue;
    const int32_t by = piece->segment_offset - piece->pos;
    const Run there{mark.begin + by, mark.end + by};
    index_.add_mark(piece->segment, there.begin, there.end);
    if (mark.begin != own.marks[0].begin) continue;
    const std::vector<CleanNote> notes = index_.clean_notes(piece->segment);  // what came before it is the same text
    if (std::ranges::find(notes, there, &CleanNote::tokens) == notes.end())
      index_.add_clean(piece->segment, there.begin, own.tokens, {mark.begin, mark.end});
  }
}

ChainEnd ContentCache::publish_part(const Own& own, bool goes_on) {
  int32_t end = std::min(own.layout.exact_end(), own.computed);
  if (goes_on) {
    const auto mark = std::ranges::upper_bound(own.marks, end, {}, &TokenMark::end);
    if (mark != own.marks.end()) end = std::min(end, mark->begin);
  }
  if (!own.kv.whole() || own.exact.pos < own.layout.prefix || end - own.exact.pos < min_segment_) return own.exact;
  add_views(own);
  return publish_exact(own, end);
}

// Tokens up to `end`, which continue the exact chain. Of what was published as the prefill went on, others' segments
// may have left since: the request holds no pages of those.
ChainEnd ContentCache::publish_exact(const Own& own, int32_t end) {
  if (const auto known = known_exactly(own, end)) return {*known, segments_.find(*known)->count, end};
  ChainEnd from = own.exact;
  if (from.pos > own.layout.prefix || !own.elsewhere.empty())
    from = end_of(index_.find_prefix(own.tokens, own.domains.exact, from.pos, from));
  if (from.pos < own.layout.prefix) return own.exact;
  const Run run{from.pos, end};
  return {insert(own, own.domains.exact, run, true, {from.segment, from.tokens}), run.size(), end};
}

ContentCache::Published ContentCache::publish_prompt(const Own& own) {
  const PromptLayout& layout = own.layout;
  Published out;
  out.chain = own.chain;
  if (!own.kv.whole()) return out;
  add_views(own);
  mark_prefix(own);
  const int32_t exact_end = own.exact_end();
  if (exact_end > std::max(own.exact.pos, layout.prefix)) out.segments.push_back(publish_exact(own, exact_end).segment);
  if (own.domains.approximate != 0) {
    auto mark = own.marks.begin();
    for (const Run& run : layout.fresh()) {
      while (mark != own.marks.end() && (mark->begin < run.begin || (mark->end <= run.end && !keeps(*mark, run))))
        ++mark;
      const bool marked = mark != own.marks.end() && keeps(*mark, run);
      if (run.begin >= exact_end && (run.size() >= min_segment_ || marked))
        out.segments.push_back(insert(own, own.domains.approximate, run, false, {}));
    }
  }
  if (own.domains.repaired != 0) publish_repaired(own);
  if (exact_end < layout.prompt_len) out.chain = publish_chain(own, layout.prompt_len);
  return out;
}

// What the request has of tokens [0, end) continues the chain that it went on from. It serves requests of the same
// policy with the same text before it: others find its clean pieces, not this.
ChainEnd ContentCache::publish_chain(const Own& own, int32_t end) {
  if (own.domains.chain == 0 || end <= own.chain.pos) return own.chain;
  const ChainEnd known = end_of(index_.find_prefix(own.tokens.first(end), own.domains.chain, end, own.chain));
  if (known.pos == end) {
    bound_chains(known.segment);
    return known;
  }
  const CachedSegment* last = segments_.find(own.chain.segment);
  // Another's may have left, lost its end, or be in another namespace.
  const bool goes_on = last && last->count >= own.chain.tokens && index_.info(last->id).domain == own.domains.chain;
  const Run run{goes_on ? own.chain.pos : 0, end};
  const SegmentId id = segments_.next_id();
  SegmentInfo info;
  info.tokens.assign(own.tokens.begin() + run.begin, own.tokens.begin() + run.end);
  info.domain = own.domains.chain;
  info.found_as = FoundAs::kChain;
  if (goes_on) info.parent = own.chain.segment, info.parent_tokens = own.chain.tokens;
  const bool behind_chain = own.exact.pos < own.layout.prefix;
  const int32_t shared = goes_on ? 0 : behind_chain ? own.exact.pos : own.layout.exact_end();
  enter({id, run.begin, run.size(), true, view_of(own.kv, run), own.request, 0, shared}, std::move(info));
  bound_chains(id);
  return {id, run.size(), end};
}

// The segment of the domain that holds these tokens and no others; null if there is none.
const CachedSegment* ContentCache::copy_of(std::span<const int32_t> tokens, DomainId domain) const {
  const Run whole{0, static_cast<int32_t>(tokens.size())};
  for (const Piece& piece : index_.find_pieces(tokens, 0, domain, min_segment_, {&whole, 1})) {
    const CachedSegment* segment = segments_.find(piece.segment);
    if (piece.count == whole.size() && segment->count == whole.size()) return segment;
  }
  return nullptr;
}

// Where a segment of the domain holds all of these tokens, maybe among others.
std::optional<Piece> ContentCache::holder_of(std::span<const int32_t> tokens, DomainId domain) const {
  const Run whole{0, static_cast<int32_t>(tokens.size())};
  for (const Piece& piece : index_.find_pieces(tokens, 0, domain, min_segment_, {&whole, 1})) {
    if (piece.count == whole.size()) return piece;
  }
  return {};
}

// A policy that carries changes over to a piece's other tokens leaves all of the piece in the request's own pages.
// Nothing is kept of a piece whose KV is in part still that of its first build: it would have to be copied. What older
// segments hold of the piece leaves, and what they hold besides stays: so there is one repair of a text, the last.
void ContentCache::publish_repaired(const Own& own) {
  const Runs owned = own.kv.owned();
  for (const Run& piece : own.layout.pieces) {
    if (intersect(own.recomputed, Runs{piece}).empty() || !includes(owned, Runs{piece})) continue;
    const bool marked = std::ranges::any_of(own.marks, [&](const TokenMark& mark) { return keeps(mark, piece); });
    if (piece.size() < min_segment_ && !marked) continue;  // it could not be found again
    const auto tokens = own.tokens.subspan(piece.begin, piece.size());
    while (const auto older = holder_of(tokens, own.domains.repaired))
      cut(older->segment, {{older->segment_offset, older->segment_offset + older->count}});
    insert(own, own.domains.repaired, piece, false, {});
  }
}

void ContentCache::publish_answer(const Own& own, const Published& of_prompt) {
  const PromptLayout& layout = own.layout;
  if (own.computed <= layout.prompt_len || !own.kv.whole()) return;
  if (of_prompt.chain.pos == layout.prompt_len) {
    Own now = own;
    now.chain = of_prompt.chain;
    publish_chain(now, own.computed);
  }
  const CachedSegment* last = of_prompt.segments.empty() ? nullptr : segments_.find(of_prompt.segments.back());
  if (layout.exact_end() == layout.prompt_len && own.exact.pos >= layout.prefix) {
    const bool broken = !last || last->pos + last->count != layout.prompt_len;  // evicted meanwhile, or its end was
    if (broken || known_exactly(own, own.computed)) return;
    insert(own, own.domains.exact, {layout.prompt_len, own.computed}, true, {last->id, last->count});
    return;
  }
  if (own.domains.approximate == 0) return;
  const Runs fresh = layout.fresh();
  Run whole{layout.prompt_len, own.computed};
  if (!fresh.empty() && fresh.back().end == layout.prompt_len) whole.begin = fresh.back().begin;
  if (whole.size() < min_segment_) return;
  if (last && last->pos == whole.begin && index_.info(last->id).domain == own.domains.approximate) erase(last->id);
  const auto known = holder_of(own.tokens.subspan(whole.begin, whole.size()), own.domains.approximate);
  if (!known) {
    insert(own, own.domains.approximate, whole, false, {});
    return;
  }
  for (const TokenMark& mark : own.marks) {  // the same answer to the same question is kept once
    const int32_t by = known->segment_offset - whole.begin;
    if (keeps(mark, whole)) index_.add_mark(known->segment, mark.begin + by, mark.end + by);
  }
  segments_.touch(known->segment);
}

void ContentCache::listen(IndexListener* listener) {
  listener_ = listener;
  index_.listen(listener);
}

}  // namespace kvilt
