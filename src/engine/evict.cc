// engine/evict.cc: what leaves the content cache, and what becomes of the segments that had tokens in it.
#include "base/check.h"
#include "engine/content_cache.h"

namespace kvilt {

int64_t ContentCache::room(OwnerId wanted_by, Reach reach) {
  store_.idle().end_pins();
  return store_.free_pages() + store_.idle().pages(wanted_by, reach);
}

bool ContentCache::make_room(int64_t pages, OwnerId wanted_by, Reach reach) {
  if (store_.free_pages() >= pages) return true;
  if (pages > room(wanted_by, reach)) return false;  // nothing is dropped in vain
  while (store_.free_pages() < pages) evict(*store_.idle().next(wanted_by, reach));
  return true;
}

void ContentCache::evict(Extent& extent) {
  const ExtentKeep until_done(&extent);
  const std::vector<SegmentId> inside = extent.segments;
  for (const SegmentId id : inside) {  // before any is cut: one may continue another
    if (on_evict_) on_evict_(id);
  }
  for (const SegmentId id : inside) {
    if (!segments_.find(id)) continue;
    const Runs lost = segments_.lost(id, extent);
    remember(id, lost, extent.again);
    cut(id, lost);
  }
  forget_frozen(extent);
  extent.evict();
  ++evicted_;
}

// Blocks that leave, in case they come back soon. Those of chains are of one conversation, and wait in an order of their
// own.
void ContentCache::remember(SegmentId id, const Runs& lost, bool again) {
  if (!index_.info(id).exact) return;
  for (const Run& run : lost) {
    for (const auto& [key, end] : index_.block_keys(id, run)) {
      ghosts_.add(key, again);
      evicted_tokens_ += ChainIndex::kBlockTokens;
    }
  }
}

// A new exact segment: those of its blocks that left a while ago should have stayed. Their extents count as used again.
void ContentCache::regret(SegmentId id, const SegmentPart& part, OwnerId owner) {
  const KvShape& shape = store_.shape();
  for (const auto& [key, end] : index_.block_keys(id, {0, part.count})) {
    const std::optional<bool> again = ghosts_.take(key);
    if (!again) continue;
    regretted_tokens_ += ChainIndex::kBlockTokens;
    store_.idle().missed(owner, int64_t{shape.L} * shape.G * ChainIndex::kBlockTokens / shape.P, *again,
                         ghosts_.odds(*again));
    for (const ExtentKeep& extent : part.kv->extents_of(part.of_kv({part.pos + end - 1, part.pos + end})).list) {
      if (extent) extent->again = true;
    }
  }
}

// A segment with fewer tokens is not kept. Of a chain more must be left than what is found without it: else each that
// goes leaves its system prompt behind, which others keep alive for as long as the server runs.
int32_t ContentCache::least_left(const CachedSegment& segment) const {
  return segment.chain ? segment.shared + kChainGain : min_segment_;
}

// The segment loses these tokens. What comes before them stays what it was; what comes after is found as pieces only. A
// mean is made of all of its text, so all that is left of it are parts.
void ContentCache::cut(SegmentId id, const Runs& lost) {
  if (lost.empty()) return;
  const CachedSegment& segment = *segments_.find(id);
  const SegmentInfo& info = index_.info(id);
  struct Rest {
    CachedSegment segment;
    SegmentInfo info;
    Runs marks;
  };
  std::vector<Rest> rest;
  const bool mean = info.contexts > 0;
  const int32_t first = mean ? 0 : lost.front().begin;
  const Runs marks = index_.marks(id);
  for (const Run& run : subtract(Runs{{first, segment.count}}, lost)) {
    if (segment.chain || run.size() < min_segment_) continue;
    Rest& out = rest.emplace_back();
    out.segment = {
        segments_.next_id(), segment.pos + run.begin, run.size(), false, segment.within(run.begin, run.size()),
        segment.request,     segment.view_of};
    out.info = {{info.tokens.begin() + run.begin, info.tokens.begin() + run.end}, info.domain, info.exact};
    out.info.found_as = FoundAs::kPieces;
    out.info.contexts = info.contexts;
    if (!info.spread.empty()) out.info.spread = {info.spread.begin() + run.begin, info.spread.begin() + run.end};
    out.info.replaced = info.replaced;
    out.info.part_of_mean = mean;
    out.marks = whole_within(marks, run);
  }
  const bool keep = first >= least_left(segment);
  if (!keep && rest.empty()) ++evicted_segments_;
  const std::vector<SegmentId> left = keep ? index_.truncate(id, first) : index_.erase(id);
  keep ? segments_.truncate(id, first) : segments_.erase(id);
  for (Rest& part : rest) enter(std::move(part.segment), std::move(part.info), part.marks);
  for (const SegmentId orphan : left) {  // a chain that nothing leads to can never be found
    const CachedSegment* chain = segments_.find(orphan);
    if (!chain || !chain->chain) continue;
    const int64_t before = segments_.segments();
    erase(orphan);
    evicted_segments_ += before - segments_.segments();
  }
}

// A chain may read nothing but what others keep in the pool, so pages do not bound them: together they have at most
// kChainTokens times as many tokens as the pool. Those go that were continued longest ago, and take no KV of others along.
void ContentCache::bound_chains(SegmentId continued) {
  for (const CachedSegment* chain = segments_.find(continued); chain && chain->chain;
       chain = segments_.find(index_.info(chain->id).parent))
    segments_.renew(chain->id);  // its beginning last
  while (segments_.chain_tokens() > kChainTokens * pool_tokens()) erase(segments_.oldest_chain());
}

int64_t ContentCache::pool_tokens() const {
  const KvShape& shape = store_.shape();
  return store_.pages() * shape.P / (int64_t{shape.L} * shape.G);
}

void ContentCache::erase(SegmentId id) {
  for (const SegmentId orphan : index_.erase(id)) {
    const CachedSegment* chain = segments_.find(orphan);
    if (!chain || !chain->chain) continue;
    index_.erase(orphan);
    segments_.erase(orphan);
  }
  segments_.erase(id);
}

void ContentCache::clear() {
  index_.listen(nullptr);  // one word for all
  while (!segments_.empty()) erase(segments_.any());
  listen(listener_);
  if (listener_) listener_->cleared();
  ghosts_.clear();
  thaw_all();
}

}  // namespace kvilt
