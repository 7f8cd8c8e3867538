// engine/spill.cc: DiskCache's way out: what is cached is copied and queued to be written: when it came in, and where there
//           was no room then when it leaves memory.
// Idea:     what is stored already is told by content: the index of the tier finds it, or a part of it, and only the rest
//           is written, as what continues that. So it does not matter how memory cut a text into segments, nor whether
//           they were computed or loaded.
// Cost:     what is copied is copied on the engine thread: one eviction copies 64 MiB at most, some 10 ms, and of a long
//           chain only so much of what is not stored yet, from its beginning on. A piece is not cut, since its marks
//           must stay whole: one that is larger is copied by itself.
#include <algorithm>
#include <functional>
#include <utility>

#include "engine/disk_cache.h"
#include "kv/kv_rows.h"

namespace kvilt {
namespace {

ChainEnd end_of_chain(const std::vector<Piece>& chain) {
  if (chain.empty()) return {};
  const Piece& last = chain.back();
  return {last.segment, last.segment_offset + last.count, last.pos + last.count};
}

// Whose request computed it, or read it.
OwnerId owner_of(const CachedSegment& segment) {
  if (segment.parts.empty()) return 0;
  const SegmentPart& first = segment.parts.front();
  const Extent* const extent = first.kv->extent_of(0, first.of_kv(first.positions()).begin);
  return extent ? extent->owner() : 0;
}

}  // namespace

// What came last first: whoever kills us now leaves the rest. Of a tenant that has a share no more is written than that
// holds, or what came earlier would push out what came last.
void DiskCache::store_all() {
  std::vector<SegmentId> ids = cache_.segments().ids();
  std::ranges::sort(ids, std::greater<>());
  std::unordered_map<OwnerId, int64_t> left;
  for (const SegmentId id : ids) {
    const CachedSegment& segment = *cache_.segments().find(id);
    const OwnerId owner = owner_of(segment);
    const auto [room, first] = left.try_emplace(owner, INT64_MAX);
    const int64_t share = first ? tier_->part_of(cache_.tenant_of(owner)).share : 0;
    if (share > 0) room->second = share - share / 64;  // the rest is for records
    if (segment.count * token_bytes_ > room->second) continue;
    copied_ = 0;
    store(id, Queue::kWait);
    room->second -= segment.count * token_bytes_;  // also of what was written before, and is the last to go
  }
}

void DiskCache::keep(SegmentId id) {
  copied_ = 0;
  try {
    store(id, Queue::kIfRoom);
  } catch (const std::bad_alloc&) {  // it leaves all the same
    ++stats_.dropped;
  }
  update();
}

// A folder gets it as soon as a shared store does: who kills us leaves what was written. It is the same bytes as those of
// an eviction, sooner. A disk that hangs takes what the queue holds: beyond kMost the oldest ids give way.
void DiskCache::entered(SegmentId id) {
  constexpr size_t kMost = size_t{1} << 16;
  if (!hooks_.post) return;
  try {
    if (entered_.size() >= kMost) entered_.pop_front();
    entered_.push_back(id);
    if (!std::exchange(stores_entered_, true)) hooks_.post_unheard([this] { store_entered(); });
  } catch (const std::bad_alloc&) {  // it is written when it leaves memory
    stores_entered_ = false;
  }
}

// Others lack all that is cached: the store was gone, and may be empty now.
void DiskCache::enter_all() {
  std::vector<SegmentId> ids = cache_.segments().ids();
  std::ranges::sort(ids);  // beginnings of chains first
  entered_.assign(ids.begin(), ids.end());
}

// As far as the queue has room; when something of it was written, and after a while, it goes on. While the tier is gone
// nothing waits for it: enter_all() follows. While much is being forgotten it waits: what leaves would count as stored.
void DiskCache::store_entered() {
  // Some milliseconds: a look hashes the segment, and what is before it in its chain.
  constexpr int32_t kLooks = 256, kTokens = 1 << 15;
  stores_entered_ = false;
  copied_ = 0;
  if (!tier_->ready()) entered_.clear();
  if (anything_leaves()) return update();
  for (int32_t looks = 0, tokens = 0; !entered_.empty(); ++looks) {
    const CachedSegment* segment = cache_.segments().find(entered_.front());
    const int64_t bytes = segment ? segment->count * token_bytes_ : 0;
    if (!io_.has_room(bytes) || (copied_ > 0 && copied_ + bytes > copied_at_once_)) break;
    tokens += segment ? segment->pos + segment->count : 0;
    if (looks == kLooks || (looks > 0 && tokens > kTokens)) {
      stores_entered_ = true;
      hooks_.post_unheard([this] { store_entered(); });
      break;
    }
    const SegmentId id = entered_.front();
    short_of_room_ = false;
    try {
      store(id, Queue::kIfRoom);
    } catch (const std::bad_alloc&) {  // it is tried again when it leaves memory
      ++stats_.dropped;
    }
    if (short_of_room_ && copied_ > 0) break;  // the rest of it follows
    entered_.pop_front();
  }
  update();
}

void DiskCache::store(SegmentId id, Queue queue) {
  if (!tier_->ready()) return;
  const CachedSegment* segment = cache_.segments().find(id);
  if (!segment || segment->chain || segment->parts.size() != 1) return;
  // It is written for the namespace that computed it; under another one only with what continues it there.
  if (segment->view_of != 0 && cache_.segments().find(segment->view_of)) return;
  const SegmentInfo& info = cache_.index().info(id);
  if (info.replaced) return;
  if (info.exact && cache_.index().is_prefix(id)) return store_chain(id, queue);
  std::vector<Piece> pieces;
  if (!find_stored(id, pieces)) {
    const uint64_t written = store_run(id, {0, segment->count}, nullptr, queue);
    if (written == 0) return;
    pieces = {Piece{.segment = written, .count = segment->count}};
  }
  // Equal tokens of another context have other KV.
  std::erase_if(pieces, [&](const Piece& piece) {
    const Stored* const known = stored_.find(piece.segment);
    return !known || std::ranges::find(known->segments, id) == known->segments.end();
  });
  store_annexes(id, 0, pieces, queue);
}

// Whether all that a look-up can find of the segment is stored, and the pieces that have it. Of a few tokens that is what
// is marked: an answer's last ones, say, whose prompt has left memory before them, were stored behind that as a rule, and
// as a piece nobody would see that they are there already.
bool DiskCache::find_stored(SegmentId id, std::vector<Piece>& pieces) const {
  const SegmentInfo& info = cache_.index().info(id);
  const Digest* digest = cache_.index().domain_digest(info.domain);
  if (!digest) return true;
  const Run whole{0, static_cast<int32_t>(info.tokens.size())};
  const Runs parts = whole.size() < min_segment_ ? cache_.index().marks(id) : Runs{whole};
  return std::ranges::all_of(parts, [&](const Run& part) {
    int32_t lacks = part.size();
    for (const Piece& piece : index_->find_pieces(info.tokens, 0, index_->domain(*digest), min_segment_, {&part, 1})) {
      lacks -= piece.count;
      pieces.push_back(piece);
    }
    return lacks < std::min(min_segment_, part.size());
  });
}

DiskCache::Chain DiskCache::chain_of(SegmentId id) const {
  Chain out;
  std::vector<int32_t> takes;  // tokens of each that its child continues
  int32_t take = static_cast<int32_t>(cache_.index().info(id).tokens.size());
  while (id != 0) {
    out.segments.push_back(id);
    takes.push_back(take);
    const SegmentInfo& info = cache_.index().info(id);
    take = info.parent_tokens;
    id = info.parent;
  }
  std::ranges::reverse(out.segments);
  std::ranges::reverse(takes);
  for (size_t i = 0; i < out.segments.size(); ++i) {
    const std::vector<int32_t>& tokens = cache_.index().info(out.segments[i]).tokens;
    out.begins.push_back(static_cast<int32_t>(out.tokens.size()));
    out.tokens.insert(out.tokens.end(), tokens.begin(), tokens.begin() + takes[i]);
  }
  return out;
}

// From the beginning on, what is not stored yet. Of a segment that another one leaves halfway all is written.
void DiskCache::store_chain(SegmentId id, Queue queue) {
  // A long conversation leaves extent by extent, in one step: its chain is hashed once, and not for each of them.
  const size_t annexes = annexes_of(id).size();
  if (const auto whole = whole_.find(id); whole != whole_.end() && whole->second == annexes) return;
  if (queue == Queue::kIfRoom && !io_.has_room(token_bytes_)) return refused();
  const Chain chain = chain_of(id);
  const Digest* digest = cache_.index().domain_digest(cache_.index().info(id).domain);
  if (!digest) return;
  const auto size = static_cast<int32_t>(chain.tokens.size());
  const auto find = [&] { return index_->find_prefix(chain.tokens, index_->domain(*digest), size); };
  const std::vector<Piece> pieces = find();
  ChainEnd known = end_of_chain(pieces);
  if (known.pos >= size) {
    return mark_stored(id, store_annexes(id, chain.begins.back(), pieces, queue) ? annexes : 0);
  }
  for (size_t i = 0; i < chain.segments.size(); ++i) {
    const int32_t begin = chain.begins[i];
    const int32_t end = i + 1 < chain.segments.size() ? chain.begins[i + 1] : size;
    if (known.pos >= end) continue;
    const int32_t all = cache_.segments().find(chain.segments[i])->count;
    const auto most = static_cast<int32_t>(std::clamp<int64_t>(copied_at_once_ / token_bytes_, 1, all));
    ChainEnd behind = known;
    for (int32_t from = known.pos - begin; from < all;) {
      const int32_t to = all - from > most ? from + most : all;
      const uint64_t stored = store_run(chain.segments[i], {from, to}, &behind, queue);
      if (stored == 0) return;  // what continues it would be no chain
      behind = {stored, to - from, begin + to};
      if (begin + from < end && end <= begin + to) known = {stored, end - begin - from, end};
      from = to;
    }
  }
  if (annexes > 0) store_annexes(id, chain.begins.back(), find(), queue);
}

// All of a chain of memory up to its end, with so many annexes.
void DiskCache::mark_stored(SegmentId id, size_t annexes) {
  constexpr size_t kMost = 4096;
  if (whole_.size() >= kMost) whole_.clear();
  whole_.insert_or_assign(id, annexes);
}

void DiskCache::refused() {
  short_of_room_ = true;
  ++stats_.dropped;
}

// The segment's tokens `run`. behind: the end of the stored chain that they continue; null: they are a piece. Returns
// the id, 0 where it is not queued.
uint64_t DiskCache::store_run(SegmentId id, Run run, const ChainEnd* behind, Queue queue) {
  const CachedSegment& segment = *cache_.segments().find(id);
  const SegmentInfo& info = cache_.index().info(id);
  const KvSegment& kv = *segment.parts[0].kv;
  const int64_t bytes = int64_t{run.size()} * token_bytes_;
  if (queue == Queue::kWait) io_.wait_for_room(bytes);
  const bool fits = queue == Queue::kWait || copied_ == 0 || copied_ + bytes <= copied_at_once_;
  if (!fits || !io_.has_room(bytes)) {
    refused();
    return 0;
  }
  const uint64_t stored = tier_->new_id();
  // What it continues may have left at once, its domain being forgotten; the id may be another piece's by chance.
  const bool continues = !behind || behind->segment == 0 || index_->contains(behind->segment);
  if (!kv.whole() || !continues || index_->contains(stored)) {
    ++stats_.dropped;
    return 0;
  }
  const int32_t first = segment.parts[0].of_kv({segment.pos + run.begin, segment.pos + run.end}).begin;
  StoredPiece piece;
  piece.id = stored;
  piece.maker = maker_;
  piece.domain = *cache_.index().domain_digest(info.domain);
  piece.owner = tier_->owner(cache_.tenant_of(owner_of(segment)));
  piece.exact = info.exact;
  piece.prefix = behind != nullptr;
  if (behind && behind->segment != 0) {
    piece.parent = behind->segment, piece.parent_tokens = behind->tokens;
    piece.behind = this->behind(behind->segment, behind->tokens);
  }
  piece.pos = first;
  piece.token_bytes = static_cast<uint32_t>(token_bytes_);
  if (tier_->in_blocks()) piece.blocks = static_cast<uint32_t>(cache_.store().shape().L);
  piece.tokens.assign(info.tokens.begin() + run.begin, info.tokens.begin() + run.end);
  piece.marks = whole_within(cache_.index().marks(id), run);
  piece.clean = whole_within(cache_.index().clean_notes(id), run);
  auto values = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(bytes));
  for (int32_t i = 0; i < chunks_of(run.size()); ++i) {
    const Run chunk = chunk_run(i, run.size());
    copy_rows_out(cache_.store(), kv, {first + chunk.begin, first + chunk.end},
                  std::span(*values).subspan(static_cast<size_t>(chunk.begin * token_bytes_),
                                             static_cast<size_t>(chunk.size() * token_bytes_)));
  }
  copied_ += bytes;
  queued_bytes_ += bytes;
  StoredPiece named = piece;
  announce(named);
  has_kv_of(id, stored);
  queued_.insert(stored);
  auto out =
      std::make_shared<Written>(Written{.id = stored, .epoch = epoch_, .bytes = bytes, .done = {}, .removed = {}});
  io_.write(
      [this, piece = std::make_shared<const StoredPiece>(std::move(piece)), values, out] {
        out->done = put(*piece, *values, out->removed);
        count();
      },
      bytes,
      [this, out] { say([this, out] { wrote(*out); }, Waits::kNobody); });  // who hears of it finds its room free
  return stored;
}

// The I/O thread.
Status DiskCache::put(const StoredPiece& piece, std::span<const std::byte> values, std::vector<uint64_t>& removed) {
  try {
    Status done = tier_->put(piece, values, removed);
    moved_ = Clock::now();
    if (done.ok()) done = tier_->flush();
    moved_ = Clock::now();
    return done;
  } catch (const std::bad_alloc&) {
    return Error{Code::kExhausted, "no memory is left to write a cached piece"};
  }
}

void DiskCache::wrote(const Written& write) {
  queued_bytes_ -= write.bytes;
  const Status& done = write.done;
  stats_.written_bytes += done.ok() ? static_cast<uint64_t>(write.bytes) : 0;
  if (write.epoch == epoch_) {
    if (!write.annexes) queued_.erase(write.id);
    for (const uint64_t gone : write.removed) forget(gone);
    if (!done.ok()) not_kept(write);
  }
  entered_.empty() ? update() : store_entered();
}

void DiskCache::not_kept(const Written& write) {
  const Error& why = write.done.error();
  if (!write.annexes) forget(write.id);
  // What it continues was dropped, or it is too large: no fault of the disk.
  const bool dropped = why.code == Code::kNotFound || why.code == Code::kTooLong;
  ++(dropped ? stats_.dropped : stats_.errors);
  if (!dropped) not_kept_.warn(why.message);
}

}  // namespace kvilt
