// engine/means.cc: ContentCache's means over contexts: how they are made, which of them a prompt finds, and what comes
// before them.
// Idea:       docs/math/seasoning.md. A mean stands for a piece whose context is not known.
// Threads:    the engine thread; positions of a mean are shared out over the pool.
// Not here:   the mean itself (kv/mean_kv.h), where it goes among other copies (ContentCache::find_pieces).
#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/content_cache.h"
#include "engine/piece_lists.h"
#include "forward/annex_rows.h"
#include "kv/annex.h"
#include "kv/kv_rows.h"
#include "kv/mean_kv.h"

namespace kvilt {
namespace {

// Where an exact copy stood behind the same tokens as here, that many of them, its context is known.
constexpr int32_t kSameContext = 64;
// Or behind all of them but for so many right before it: what a template puts around a message, a heading.
constexpr int32_t kSeam = 16;

// At most, of a new table's tokens with so many bytes each: an extent's run fills its last page only in part.
int64_t pages_for_states(const PageStore& store, int32_t tokens, int64_t bytes) {
  if (bytes == 0) return 0;
  const int32_t extents = tokens / (kExtentSlots / 2) + 2;
  return Annex::pages_for(store, tokens * bytes) + 2 * int64_t{extents};
}

}  // namespace

// Of each text the mean over the most contexts, in whichever of the namespaces it is; of equal ones that of the namespace
// that was named first. A part of another document's mean hides no whole one.
std::vector<Piece> ContentCache::find_means(std::span<const int32_t> prompt, const ClipRules& rules,
                                            const ContentDomains& domains, SearchCost& cost) const {
  std::vector<std::vector<Piece>> lists;  // by namespace
  domains.each([&](const ContentDomains& of) {
    if (of.seasoned != 0)
      lists.push_back(index_.find_pieces(prompt, rules.from, of.seasoned, min_segment_, rules.marks, &cost));
  });
  std::erase_if(lists, [](const std::vector<Piece>& list) { return list.empty(); });
  if (lists.size() == 1) return std::move(lists[0]);
  std::vector<Piece> out;
  for (const bool whole : {true, false}) {
    for (int contexts = kMostContexts; contexts > 0 && !lists.empty(); --contexts) {
      for (const std::vector<Piece>& list : lists) {
        std::vector<Piece> next;
        std::ranges::copy_if(list, std::back_inserter(next), [&](const Piece& piece) {
          return index_.info(piece.segment).contexts == contexts && is_whole(piece, rules) == whole;
        });
        fill_gaps(next, min_segment_, out);
      }
    }
  }
  return out;
}

// A mean that is all of its segment, or holds all of a mark.
bool ContentCache::is_whole(const Piece& piece, const ClipRules& rules) const {
  const SegmentInfo& info = index_.info(piece.segment);
  return holds_mark(piece, rules) || (!info.part_of_mean && std::ssize(info.tokens) == piece.count);
}

// Whether the exact copy has all of the text. Of an answer the last token has no KV, if nothing was computed from it: what
// is left of a copy must be long enough to be a piece.
bool ContentCache::covers(const Piece& copy, Run text) const {
  const int32_t lacks = std::max(0, text.end - (copy.pos + copy.count));
  return copy.pos <= text.begin && (lacks == 0 || (lacks == 1 && text.size() > min_segment_));
}

// Whether one of the exact pieces (sorted, disjoint) has the text behind what is before it here.
bool ContentCache::in_same_context(std::span<const int32_t> prompt, Run text, std::span<const Piece> exact) const {
  const auto after = std::ranges::upper_bound(exact, text.begin, {}, &Piece::pos);
  if (after == exact.begin()) return false;
  const Piece& copy = *std::prev(after);
  if (!covers(copy, text)) return false;
  const int32_t missing = kSameContext - (text.begin - copy.pos);
  return missing <= 0 || index_.shared_context(prompt, copy, missing) >= missing ||
         index_.same_beginning(prompt, copy, kSeam);
}

bool ContentCache::before_clean(std::span<const int32_t> prompt, const Found& found, Run text) const {
  for (const Piece& piece : found.known) {
    if (piece.pos < found.layout.prefix || !covers(piece, text)) continue;
    const SegmentInfo& info = index_.info(piece.segment);
    if (info.contexts > 0) return piece.pos + piece.count >= text.end;
    return info.exact && in_same_context(prompt, text, {&piece, 1});
  }
  return false;
}

std::vector<LacksContexts> ContentCache::without_contexts(std::span<const int32_t> prompt,
                                                          std::span<const TokenMark> marks, DomainId seasoned,
                                                          int contexts) const {
  std::vector<LacksContexts> out;
  for (const TokenMark& mark : marks) {
    if (mark.end - mark.begin < min_segment_) continue;
    const CachedSegment* copy = copy_of(prompt.subspan(mark.begin, mark.end - mark.begin), seasoned);
    const int has = copy ? index_.info(copy->id).contexts : 0;
    if (has < contexts) out.push_back({mark, contexts - has});
  }
  return out;
}

// They are made one after the other, and each takes the place of the old one.
ContentCache::MeansToMake ContentCache::means_to_make(std::span<const int32_t> prompt, std::span<const TokenMark> marks,
                                                      DomainId seasoned, int64_t state_bytes) const {
  MeansToMake out;
  int64_t more = 0;
  for (const TokenMark& mark : marks) {
    const int32_t size = mark.end - mark.begin;
    if (size < min_segment_) continue;
    auto old = pinned_mean(prompt.subspan(mark.begin, size), seasoned);
    const int64_t pages = pages_for_rows(store_, {0, size}) + pages_for_states(store_, size, state_bytes);
    more += pages;
    out.pages = std::max(out.pages, more);
    if (!old) continue;
    out.old.push_back(*std::move(old));
    more -= pages;
  }
  return out;
}

std::optional<PinnedPages> ContentCache::pinned_mean(std::span<const int32_t> tokens, DomainId seasoned) const {
  const CachedSegment* mean = copy_of(tokens, seasoned);
  if (!mean) return {};
  return mean->parts[0].kv->pin(mean->parts[0].of_kv({mean->pos, mean->pos + mean->count}));
}

// What evictions left of means of this text.
std::vector<SegmentId> ContentCache::parts_of_mean(std::span<const int32_t> tokens, DomainId seasoned) const {
  const Run whole{0, static_cast<int32_t>(tokens.size())};
  std::vector<SegmentId> out;
  for (const Piece& piece : index_.find_pieces(tokens, 0, seasoned, min_segment_, {&whole, 1})) {
    const SegmentInfo& info = index_.info(piece.segment);
    if (info.part_of_mean && std::ssize(info.tokens) == piece.count) out.push_back(piece.segment);
  }
  return out;
}

std::vector<int> ContentCache::season(const Own& own, ThreadPool& pool, int most) {
  std::vector<int> out(own.marks.size());
  const bool exact = own.layout.exact_end() == own.layout.prompt_len && own.exact.pos >= own.layout.prefix;
  if (!exact || !own.kv.whole()) return out;
  // None of these makes room for another: the old means, then the new ones, whose states come last.
  std::vector<std::optional<PinnedPages>> stay(out.size());
  std::vector<NewMean> made(out.size());
  const auto pin = [&](size_t i) {
    const TokenMark& mark = own.marks[i];
    const auto tokens = own.tokens.subspan(mark.begin, mark.end - mark.begin);
    if (std::ssize(tokens) >= min_segment_) stay[i] = pinned_mean(tokens, own.domains.seasoned);
  };
  for (size_t i = 0; i < out.size(); ++i) pin(i);
  for (size_t i = 0; i < out.size(); ++i) {
    const TokenMark& mark = own.marks[i];
    if (mark.end - mark.begin < min_segment_ || !own.kv.owns({mark.begin, mark.end})) continue;
    made[i] = season(own, mark, pool, most);
    out[i] = made[i].contexts;
    if (out[i] > 0) pin(i);
  }
  for (const NewMean& mean : made) attach_state(own, mean);
  return out;
}

// Nothing that somebody asked to be kept makes room for it. REQUIRES: the old mean is pinned.
ContentCache::NewMean ContentCache::season(const Own& own, const TokenMark& mark, ThreadPool& pool, int most) {
  const Run run{mark.begin, mark.end}, whole{0, run.size()};
  const auto tokens = own.tokens.subspan(run.begin, run.size());
  const CachedSegment* old = copy_of(tokens, own.domains.seasoned);
  const int contexts = old ? index_.info(old->id).contexts : 0;
  if (contexts >= most) return {};
  const auto now = own.kv.publish(run);
  std::vector<MeanPart> parts;
  if (old) parts.push_back({old->parts[0].kv.get(), old->parts[0].of_kv({old->pos, old->pos + old->count})});
  parts.push_back({now.get(), run});
  if (old) parts[0].weight = static_cast<float>(contexts) / static_cast<float>(contexts + 1);
  parts.back().weight = 1 / static_cast<float>(contexts + 1);
  if (!make_room(pages_for_rows(store_, run), own.kv.owner(), Reach::kOrdinary)) return {};
  const std::vector<SegmentId> replaced = old ? std::vector{old->id} : parts_of_mean(tokens, own.domains.seasoned);
  std::vector<TokenSpread> apart;
  const auto mean = mean_kv(store_, own.kv.ropes(), parts, pool, old ? &apart : nullptr);
  mean->give_to(own.kv.owner());
  const Run at = parts[0].positions;
  NewMean out{contexts + 1, mean->publish(at), {}, states_of(own, parts.back(), old)};
  out.pages = out.kv->pin(at);
  SegmentInfo info{{tokens.begin(), tokens.end()}, own.domains.seasoned};
  info.contexts = out.contexts;
  info.replaced = true;
  if (old) info.spread = spread_with(index_.info(old->id).spread, apart, contexts);
  const SegmentId id = segments_.next_id();
  enter({id, at.begin, at.size(), false, {{out.kv, 0, at.size(), at.begin}}, own.request}, std::move(info), {whole});
  if (!index_.contains(id)) return {};
  for (const SegmentId earlier : replaced) erase(earlier);
  return out;
}

// The states of a mean over this context and those of the old one, if there is one. None where that has none, so a mean
// that once had no room for its states has none until it begins anew.
std::vector<std::byte> ContentCache::states_of(const Own& own, const MeanPart& now, const CachedSegment* old) const {
  if (!own.mean_state || !includes(own.mean_state->rows.rows(), Runs{now.positions})) return {};
  if (!old) return bytes_of(*own.mean_state, now.positions);
  const SegmentPart& part = old->parts[0];
  const Run there = part.of_kv({old->pos, old->pos + old->count});
  const Placement before(part.kv, there.begin - part.kv->pos(), there.size(), there.begin);
  if (annexed({&before, 1}, own.mean_state->kind) != Runs{before.positions()}) return {};
  return mean_bytes(*own.mean_state, now.positions, before, now.weight);
}

// Where there is room: without its states nothing enters at a mean.
void ContentCache::attach_state(const Own& own, const NewMean& mean) {
  if (mean.states.empty()) return;
  const AnnexKind kind = own.mean_state->kind;
  const Run at = mean.kv->positions();
  const int64_t pages = mean.kv->pages_to_attach(kind, at, std::ssize(mean.states));
  if (make_room(pages, own.kv.owner(), Reach::kOrdinary)) mean.kv->attach(kind, at, mean.states);
}

}  // namespace kvilt
