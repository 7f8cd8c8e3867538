// kv/segment_cache.h: the cached segments by id. It keeps their KV alive; index/ finds them.
// Idea:       a cached segment is a recipe: parts of KV that lie one after the other, some of them shared with other
//             segments. That of a chain has the parts as its request read them: pieces of other texts, and on top of
//             them what it computed itself (PageTable::overlay).
// Invariants: every extent with a part's slots names the segment. The KV of an extent that is evicted belongs to no
//             segment any more: the owner cuts what lost() names, then calls Extent::evict().
// Threads:    the engine thread.
// Cost:       find is O(1); the others are linear in the segment's extents.
// Not here:   the order of eviction (kv/extent.h), what is cut (engine/content_cache.h).
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "base/step_map.h"
#include "index/cached_segment.h"
#include "kv/page_table.h"

namespace kvilt {

// Tokens [offset, offset + count) of `kv`, which the computing request had at positions [pos, pos + count).
struct SegmentPart {
  std::shared_ptr<const KvSegment> kv;
  int32_t offset = 0, count = 0, pos = 0;
  Run positions() const { return {pos, pos + count}; }
  Run of_kv(Run positions) const;  // where those of its positions are in kv
};

struct CachedSegment {
  SegmentId id = 0;
  int32_t pos = 0, count = 0;      // of its tokens, in the request that computed it
  bool chain = false;              // found only as a chain (index/cached_segment.h)
  std::vector<SegmentPart> parts;  // sorted and disjoint; those whose KV is not whole are overlays, sorted after them
  uint64_t request = 0;            // that computed it
  // A view: its parts are those of this segment, or were while that was cached; 0: its KV is its own. So one copy of KV
  // is found in several domains.
  SegmentId view_of = 0;
  int32_t shared = 0;    // of a chain: so many of its first tokens are exact, and found without it
  uint64_t renewed = 0;  // of a chain or a view: its place in the order of use (SegmentCache sets it)

  // The segment's tokens [offset, offset + size) with the first at `to`.
  void place(int32_t offset, int32_t size, int32_t to, std::vector<Placement>& out) const;
  // Those parts, as parts of another segment.
  std::vector<SegmentPart> within(int32_t offset, int32_t size) const;
};

// What a request has at these positions, as parts: what it computed itself, and what it placed and still reads.
std::vector<SegmentPart> view_of(const PageTable& table, Run positions);

class SegmentCache {
 public:
  SegmentId next_id() { return ++last_id_; }
  void insert(CachedSegment segment);             // REQUIRES: a new id
  const CachedSegment* find(SegmentId id) const;  // null if it left
  void erase(SegmentId id);                       // an unknown id is ignored
  void truncate(SegmentId id, int32_t count);     // keeps its first `count` tokens
  // Its idle extents become the most recently used, the first one last.
  void touch(SegmentId id);
  // The chain was continued, or the view was found: it is the one that was used last.
  void renew(SegmentId id);  // REQUIRES: a chain or a view
  // Those of its tokens that have a slot in the extent.
  Runs lost(SegmentId id, const Extent& extent) const;

  bool empty() const { return by_id_.empty(); }
  SegmentId any() const { return by_id_.any(); }  // REQUIRES: not empty
  std::vector<SegmentId> ids() const;
  int64_t segments() const { return static_cast<int64_t>(by_id_.size()); }
  int64_t tokens() const { return tokens_; }  // without chains and views: most of theirs are of other segments
  int64_t view_tokens() const { return view_tokens_; }
  SegmentId oldest_view() const { return views_.empty() ? 0 : views_.begin()->second; }  // by use; 0: there is none
  int64_t chain_tokens() const { return chain_tokens_; }
  SegmentId oldest_chain() const { return chains_.empty() ? 0 : chains_.begin()->second; }  // by use; 0: there is none

 private:
  template <class Visitor>
  static void each_extent(const CachedSegment& segment, Visitor&& visitor);
  void enter(const CachedSegment& segment);
  void leave(const CachedSegment& segment);
  StepMap<CachedSegment> by_id_;
  SegmentId last_id_ = 0;
  int64_t tokens_ = 0, view_tokens_ = 0, chain_tokens_ = 0;
  std::map<uint64_t, SegmentId> views_, chains_;  // by CachedSegment::renewed
  uint64_t last_renewed_ = 0;
};

}  // namespace kvilt
