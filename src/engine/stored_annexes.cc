// engine/stored_annexes.cc: DiskCache: what was found out about stored tokens (kv/annex.h) goes with them, and comes back.
// Idea:     most of it is found out after its tokens were stored, by the first request that reads them from there. So it is
//           written beside a piece at any time: when its segment leaves memory, or at the end.
// Invariants: it is of the KV that the piece has: an exact chain's, which is the same whoever computed it, or that of the
//           segment that was written as the piece or came from it. What is stored is checked before anybody reads it.
// Limits:   one that lies in two stored pieces is not kept, and one whose tokens come back in part is not read.
#include <algorithm>
#include <map>
#include <new>
#include <utility>

#include "engine/disk_cache.h"
#include "kv/annex.h"

namespace kvilt {

// What would be stored of a segment, if all of it is in one place. REQUIRES: it is cached.
std::vector<const Annex*> DiskCache::annexes_of(SegmentId id) const {
  const CachedSegment& segment = *cache_.segments().find(id);
  if (!tier_->keeps_annexes()) return {};
  const SegmentPart& part = segment.parts[0];
  std::vector<const Annex*> out = blocks_within(*part.kv, part.of_kv({segment.pos, segment.pos + segment.count}));
  std::erase_if(out, [](const Annex* annex) { return !outlives_memory(annex->kind().of); });
  return out;
}

void DiskCache::has_kv_of(SegmentId id, uint64_t stored) {
  Stored* const known = stored_.find(stored);
  if (!known) return;  // the index did not take it
  std::erase_if(known->segments, [&](SegmentId old) { return !cache_.segments().find(old); });
  known->segments.push_back(id);
}

// Those that are not stored yet. pieces: where tokens of some text are stored; first: where the segment begins in that.
// False: there was no room for all.
bool DiskCache::store_annexes(SegmentId id, int32_t first, std::span<const Piece> pieces, Queue queue) {
  std::map<uint64_t, std::vector<StoredAnnex>> of_piece;
  const CachedSegment& segment = *cache_.segments().find(id);
  const int32_t by = first - segment.parts[0].of_kv({segment.pos, segment.pos + segment.count}).begin;
  for (const Annex* annex : annexes_of(id)) {
    const Run run{annex->positions().begin + by, annex->positions().end + by};
    const auto behind = std::ranges::upper_bound(pieces, run.begin, {}, &Piece::pos);
    if (behind == pieces.begin()) continue;
    const Piece& piece = *std::prev(behind);
    if (run.end > piece.pos + piece.count) continue;
    const int32_t offset = piece.segment_offset - piece.pos;
    const Run tokens{run.begin + offset, run.end + offset};
    const auto& known = stored(piece.segment).annexes;
    if (std::ranges::find(known, std::pair(annex->kind(), tokens)) != known.end()) continue;
    StoredAnnex& out = of_piece[piece.segment].emplace_back();
    out = {static_cast<uint32_t>(annex->kind().of), annex->kind().layer, tokens, {}};
    out.bytes.resize(static_cast<size_t>(annex->bytes()));
    annex->read(0, out.bytes);
  }
  bool all = true;
  for (auto& [stored, annexes] : of_piece) all = store_annexes(stored, std::move(annexes), queue) && all;
  return all;
}

bool DiskCache::store_annexes(uint64_t stored, std::vector<StoredAnnex> annexes, Queue queue) {
  int64_t bytes = 0;
  for (const StoredAnnex& annex : annexes) bytes += std::ssize(annex.bytes);
  if (queue == Queue::kWait) io_.wait_for_room(bytes);
  if (!io_.has_room(bytes)) {
    refused();
    return false;
  }
  for (const StoredAnnex& annex : annexes)
    this->stored(stored).annexes.emplace_back(AnnexKind{static_cast<AnnexOf>(annex.of), annex.layer}, annex.tokens);
  copied_ += bytes;
  queued_bytes_ += bytes;
  auto out = std::make_shared<Written>(
      Written{.id = stored, .epoch = epoch_, .bytes = bytes, .done = {}, .removed = {}, .annexes = true});
  io_.write(
      [this, annexes = std::make_shared<const std::vector<StoredAnnex>>(std::move(annexes)), out] {
        out->done = put_annexes(out->id, *annexes, out->removed);
        count();
      },
      bytes, [this, out] { say([this, out] { wrote(*out); }, Waits::kNobody); });
  return true;
}

// The I/O thread. What the piece has besides stays.
Status DiskCache::put_annexes(uint64_t id, const std::vector<StoredAnnex>& annexes, std::vector<uint64_t>& removed) {
  try {
    std::vector<StoredAnnex> all = annexes;
    std::vector<std::byte> bytes;
    if (tier_->get_annexes(id, bytes).ok()) {
      for (StoredAnnex& old : decode_annexes(bytes).value_or(std::vector<StoredAnnex>())) {
        const auto same = [&](const StoredAnnex& one) { return one.same_place(old); };
        if (std::ranges::none_of(annexes, same)) all.push_back(std::move(old));
      }
    }
    return tier_->put_annexes(id, encode_annexes(all), removed);
  } catch (const std::bad_alloc&) {
    return Error{Code::kExhausted, "no memory is left to write what is known of a cached piece"};
  }
}

// The I/O thread. Without them the piece is as good.
void DiskCache::read_annexes(uint64_t id, Arriving& to) {
  try {
    std::vector<std::byte> bytes;
    const Status got = tier_->get_annexes(id, bytes);
    if (!got.ok()) {
      if (got.error().code != Code::kNotFound) to.damaged = got.error();
      return;
    }
    if (auto annexes = decode_annexes(bytes)) {
      to.annexes = *std::move(annexes);
    } else {
      to.damaged = Error{Code::kCorrupt, "what is stored beside a piece is no list of annexes"};
    }
  } catch (const std::bad_alloc&) {
    to.annexes.clear();
  }
}

// Of `wanted`, the stored piece's tokens that became the segment: a block of others is of no use. Somebody uses its pages.
void DiskCache::attach_annexes(const Part& part, SegmentId id, Run wanted, const Arriving& from, OwnerId owner) {
  has_kv_of(id, part.id);
  Stored& known = stored(part.id);
  std::optional<Error> damaged = from.damaged;
  const std::shared_ptr<const KvSegment> kv = cache_.segments().find(id)->parts[0].kv;  // others make room meanwhile
  try {
    for (const StoredAnnex& annex : from.annexes) {
      const AnnexKind kind{static_cast<AnnexOf>(annex.of), annex.layer};
      if (static_cast<uint32_t>(kind.of) != annex.of || !outlives_memory(kind.of)) continue;  // a later version's
      if (annex.tokens.begin < wanted.begin || annex.tokens.end > wanted.end) continue;
      if (!hooks_.is_sound || !hooks_.is_sound(kind, annex.tokens.size(), annex.bytes)) {
        damaged = Error{Code::kCorrupt, "what is stored beside a piece is not what this model needs to know of it"};
        continue;
      }
      if (std::ranges::find(known.annexes, std::pair(kind, annex.tokens)) == known.annexes.end())
        known.annexes.emplace_back(kind, annex.tokens);
      const Run positions{from.base + annex.tokens.begin, from.base + annex.tokens.end};
      const int64_t pages = kv->pages_to_attach(kind, positions, std::ssize(annex.bytes));
      if (hooks_.make_room(pages, owner)) kv->attach(kind, positions, annex.bytes);
    }
  } catch (const std::bad_alloc&) {  // it is found out anew
  }
  if (!damaged) return;
  ++stats_.errors;
  annex_lost_.warn(damaged->message);
}

}  // namespace kvilt
