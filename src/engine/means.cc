// engine/means.cc: ContentCache's means over contexts: how they are made, which of them a prompt finds, and what comes
// before them.
// Idea:       docs/math/seasoning.md. A mean stands for a piece whose context is not known.
// Threads:    the engine thread; positions of a mean are shared out over the pool.
// Not here:   the mean itself (kv/mean_kv.h), where it goes among other copies (ContentCache::find_pieces).
#include <algorithm>
#include <utility>

#include "engine/content_cache.h"
#include "engine/piece_lists.h"
#include "kv/mean_kv.h"

namespace kvilt {
namespace {

// Where an exact copy stood behind the same tokens as here, that many of them, its context is known.
constexpr int32_t kSameContext = 64;

}  // namespace

// Whether one of the exact pieces (sorted, disjoint) has the mean's text behind the text that is before it here.
bool ContentCache::in_same_context(std::span<const int32_t> prompt, const Piece& mean,
                                   const std::vector<Piece>& exact) const {
  const auto after = std::ranges::upper_bound(exact, mean.pos, {}, &Piece::pos);
  if (after == exact.begin()) return false;
  const Piece& copy = *std::prev(after);
  if (copy.pos + copy.count < mean.pos + mean.count) return false;
  const int32_t missing = kSameContext - (mean.pos - copy.pos);
  return missing <= 0 || index_.shared_context(prompt, copy, missing) >= missing;
}

std::vector<TokenMark> ContentCache::without_contexts(std::span<const int32_t> prompt, std::span<const TokenMark> marks,
                                                      DomainId seasoned, int contexts) const {
  std::vector<TokenMark> out;
  for (const TokenMark& mark : marks) {
    if (mark.end - mark.begin < min_segment_) continue;
    const CachedSegment* copy = copy_of(prompt.subspan(mark.begin, mark.end - mark.begin), seasoned);
    if (!copy || index_.info(copy->id).contexts < contexts) out.push_back(mark);
  }
  return out;
}

void ContentCache::season(const Own& own, ThreadPool& pool) {
  const bool exact = own.layout.exact_end() == own.layout.prompt_len && own.exact.pos >= own.layout.prefix;
  if (!exact || !own.kv.whole()) return;
  for (const TokenMark& mark : own.marks) {
    if (mark.end - mark.begin >= min_segment_ && own.kv.owns({mark.begin, mark.end})) season(own, mark, pool);
  }
}

void ContentCache::season(const Own& own, const TokenMark& mark, ThreadPool& pool) {
  const Run run{mark.begin, mark.end}, whole{0, run.size()};
  const auto tokens = own.tokens.subspan(run.begin, run.size());
  const CachedSegment* old = copy_of(tokens, own.domains.seasoned);
  const int contexts = old ? index_.info(old->id).contexts : 0;
  if (contexts >= kMostContexts) return;
  const auto now = own.kv.publish(run);
  std::vector<MeanPart> parts;
  if (old) parts.push_back({old->parts[0].kv.get(), old->parts[0].of_kv({old->pos, old->pos + old->count})});
  parts.push_back({now.get(), run});
  if (old) parts[0].weight = static_cast<float>(contexts) / static_cast<float>(contexts + 1);
  parts.back().weight = 1 / static_cast<float>(contexts + 1);
  const KvShape& shape = store_.shape();
  const PinnedPages kept = parts[0].kv->pin(parts[0].positions);  // while others make room
  const int64_t pages = int64_t{shape.L} * shape.G * ((run.size() + shape.P - 1) / shape.P);
  if (!make_room(pages, own.kv.owner())) return;
  const auto mean = mean_kv(store_, own.kv.ropes(), parts, pool);
  mean->give_to(own.kv.owner());
  const Run at = parts[0].positions;
  SegmentInfo info{{tokens.begin(), tokens.end()}, own.domains.seasoned};
  info.contexts = contexts + 1;
  info.replaced = true;
  const SegmentId replaced = old ? old->id : 0, id = segments_.next_id();
  enter({id, at.begin, at.size(), false, {{mean->publish(at), 0, at.size(), at.begin}}, own.request}, std::move(info),
        {whole});
  if (replaced != 0) erase(replaced);
}

}  // namespace kvilt
