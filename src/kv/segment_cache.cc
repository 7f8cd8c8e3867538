#include "kv/segment_cache.h"

#include <algorithm>
#include <new>

#include "base/check.h"

namespace kvilt {
namespace {

Run clip(Run a, Run b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

}  // namespace

Run SegmentPart::of_kv(Run positions) const {
  const int32_t by = kv->pos() + offset - pos;
  return {positions.begin + by, positions.end + by};
}

void CachedSegment::place(int32_t offset, int32_t size, int32_t to, std::vector<Placement>& out) const {
  const Run wanted{pos + offset, pos + offset + size};
  for (const SegmentPart& part : parts) {
    const Run here = clip(part.positions(), wanted);
    if (here.size() > 0)
      out.emplace_back(part.kv, part.offset + here.begin - part.pos, here.size(), to + here.begin - wanted.begin);
  }
}

std::vector<SegmentPart> CachedSegment::within(int32_t offset, int32_t size) const {
  std::vector<SegmentPart> out;
  for (const SegmentPart& part : parts) {
    const Run here = clip(part.positions(), {pos + offset, pos + offset + size});
    if (here.size() > 0) out.push_back({part.kv, part.offset + here.begin - part.pos, here.size(), here.begin});
  }
  return out;
}

std::vector<SegmentPart> view_of(const PageTable& table, Run positions) {
  std::vector<SegmentPart> base, over;
  const auto add = [&](std::span<const Placement> placements, const Runs& within, std::vector<SegmentPart>& out) {
    for (const Placement& placed : placements) {
      auto left = std::ranges::upper_bound(within, placed.pos, {}, &Run::end);
      for (; left != within.end() && left->begin < placed.pos + placed.count; ++left) {
        const Run here = clip(placed.positions(), *left);
        out.push_back({placed.segment, placed.offset + here.begin - placed.pos, here.size(), here.begin});
      }
    }
  };
  const Runs not_owned = subtract(Runs{positions}, table.owned());
  add(table.placements(), not_owned, base);
  add(table.overlays(), not_owned, over);
  if (auto own = table.publish(positions)) {
    const bool whole = own->whole();
    Runs runs{positions};
    // Overlays are disjoint. Those of the chain that the request went on from hold nothing of its own.
    for (size_t i = 0; !whole && i < over.size(); ++i) runs = subtract(runs, Runs{over[i].positions()});
    auto& out = whole ? base : over;
    for (const Run& run : runs) out.push_back({own, run.begin - positions.begin, run.size(), run.begin});
    std::ranges::sort(out, {}, &SegmentPart::pos);
  }
  base.insert(base.end(), over.begin(), over.end());
  return base;
}

template <class Visitor>
void SegmentCache::each_extent(const CachedSegment& segment, Visitor&& visitor) {
  for (const SegmentPart& part : segment.parts) {
    for (const ExtentKeep& extent : part.kv->extents_of(part.of_kv(part.positions())).list) {
      if (extent) visitor(*extent.get());
    }
  }
}

void SegmentCache::enter(const CachedSegment& segment) {
  each_extent(segment, [&](Extent& extent) {
    if (!extent.segments.empty() && extent.segments.back() == segment.id) return;
    if (!segment.chain) {
      extent.order = IdleExtents::Order::kPieces;
    } else if (extent.segments.empty()) {
      extent.order = IdleExtents::Order::kChains;
    }
    extent.segments.push_back(segment.id);
  });
  if (segment.view_of != 0) {
    views_.emplace(segment.renewed, segment.id);
    view_tokens_ += segment.count;
  } else if (segment.chain) {
    chains_.emplace(segment.renewed, segment.id);
    chain_tokens_ += segment.count;
  } else {
    tokens_ += segment.count;
  }
}

void SegmentCache::leave(const CachedSegment& segment) {
  each_extent(segment, [&](Extent& extent) { std::erase(extent.segments, segment.id); });
  if (segment.view_of != 0) {
    view_tokens_ -= views_.erase(segment.renewed) == 0 ? 0 : segment.count;
  } else if (segment.chain) {
    chain_tokens_ -= chains_.erase(segment.renewed) == 0 ? 0 : segment.count;
  } else {
    tokens_ -= segment.count;
  }
}

void SegmentCache::insert(CachedSegment segment) {
  const SegmentId id = segment.id;
  CHECK(!by_id_.find(id));
  segment.renewed = ++last_renewed_;
  CachedSegment& kept = by_id_.at(id) = std::move(segment);
  try {
    enter(kept);
  } catch (const std::bad_alloc&) {
    each_extent(kept, [&](Extent& extent) { std::erase(extent.segments, id); });
    by_id_.erase(id);
    throw;
  }
}

const CachedSegment* SegmentCache::find(SegmentId id) const { return by_id_.find(id); }

std::vector<SegmentId> SegmentCache::ids() const {
  std::vector<SegmentId> out;
  by_id_.each([&](uint64_t id, const CachedSegment&) { out.push_back(id); });
  return out;
}

void SegmentCache::erase(SegmentId id) {
  const CachedSegment* const segment = find(id);
  if (!segment) return;
  leave(*segment);
  by_id_.erase(id);
}

void SegmentCache::truncate(SegmentId id, int32_t count) {
  CHECK(by_id_.find(id));
  CachedSegment& segment = by_id_.at(id);
  CHECK(count > 0 && count <= segment.count);
  leave(segment);
  segment.parts = segment.within(0, count);
  segment.count = count;
  enter(segment);
}

void SegmentCache::touch(SegmentId id) {
  const CachedSegment* segment = find(id);
  if (!segment) return;
  std::vector<Extent*> extents;
  each_extent(*segment, [&](Extent& extent) { extents.push_back(&extent); });
  for (auto it = extents.rbegin(); it != extents.rend(); ++it) (*it)->touch();
}

void SegmentCache::renew(SegmentId id) {
  CachedSegment* const segment = by_id_.find(id);
  CHECK(segment && (segment->chain || segment->view_of != 0));
  auto& order = segment->view_of != 0 ? views_ : chains_;
  auto place = order.extract(segment->renewed);
  if (place.empty()) return;  // memory was short when it was cut
  segment->renewed = place.key() = ++last_renewed_;
  order.insert(std::move(place));
}

Runs SegmentCache::lost(SegmentId id, const Extent& extent) const {
  const CachedSegment* const found = find(id);
  CHECK(found);
  const CachedSegment& segment = *found;
  Runs out;
  for (const SegmentPart& part : segment.parts) {
    const int32_t by = part.pos - part.kv->pos() - part.offset - segment.pos;  // from kv's positions to our tokens
    for (const Run& run : part.kv->inside(extent, part.of_kv(part.positions())))
      out.push_back({run.begin + by, run.end + by});
  }
  return normalize(std::move(out));
}

}  // namespace kvilt
