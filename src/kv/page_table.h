// kv/page_table.h: WHERE the keys and values of one sequence are: placements of shared, immutable segments, and private
// pages. docs/design/kv.md has an example.
// Idea:       a placed segment is never copied: its keys stay as first rotated, and the query is rotated back by the
//             shift (docs/math/rope_shift.md). What the request computes itself is in private slots and hides its stale
//             twin in the placed segment: resolve() cuts the twin out of the spans, so that every position occurs once,
//             whoever computed it.
//             Heads are ragged: one that keeps less than all (keep()) holds pages only for positions that a row still
//             to come may see, or that the current chunk writes. Slots belong to the layer, pages to the head.
//             An answer that lets go of keys for good packs each head's own together (compact(), kept_keys.h).
// Overlays:   an earlier request of the same conversation may have read a placed segment at some positions and layers
//             and its own slots at others. Its view is placed again as it was: the segment, and what it computed itself
//             as an overlay, which hides the segment where it has slots (docs/design/kv.md#chains).
// Invariants: placements are sorted and disjoint, and so are overlays; a position's private slot never moves; segments
//             are never written. No key that a mask shows is ever missing; reading one that was dropped is a CHECK.
// Threads:    the engine thread; others may resolve() while it waits for them (prepare_reads).
// Cost:       resolve is O(pages + slot runs) per (layer, head); layers with equal write sets share their geometry.
// Not here:   which positions to write (plan/), finding segments (index/).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/annex_kind.h"
#include "base/head_window.h"
#include "base/runs.h"
#include "kernels/backend.h"
#include "kv/page_store.h"
#include "kvilt/result.h"
#include "tensor/rope.h"

namespace kvilt {

// Positions [pos, pos + count) are in slots [slot, slot + count).
struct SlotRun {
  int32_t pos = 0, count = 0, slot = 0;
  friend bool operator==(const SlotRun&, const SlotRun&) = default;
};

// Which positions have private slots at a layer, and where. Sorted by pos, disjoint.
struct SlotMap {
  std::vector<SlotRun> runs;
  int32_t slots = 0;                   // handed out
  int32_t slot_of(int32_t pos) const;  // -1: none
  Runs positions() const;
  std::vector<SlotRun> within(Run positions) const;  // clipped
  void add(const Runs& positions);                   // new slots, in order, for those that have none
  // add() for positions right after the last one, if that one is in the last slot; else false and nothing happens.
  bool append(Run positions);
  // Takes the slots of positions from pos on back. REQUIRES: they are the last ones that were handed out.
  void truncate(int32_t pos);
};

// Immutable KV of positions [pos, pos + count) of some request, as computed (and K rotated) there. While it lives it
// keeps the extents with its slots, except those that the cache evicts: the cache then cuts what it finds of them
// (kv/segment_cache.h). Neither copied nor moved.
class KvSegment {
 public:
  // maps: distinct ones; their positions lie in the run. map_of: per layer.
  KvSegment(Run positions, std::vector<SlotMap> maps, std::vector<uint16_t> map_of, const PageList& pages);
  ~KvSegment();
  KvSegment(const KvSegment&) = delete;
  KvSegment& operator=(const KvSegment&) = delete;

  int32_t pos() const { return positions_.begin; }
  int32_t count() const { return positions_.size(); }
  Run positions() const { return positions_; }
  const SlotMap& map(int layer) const { return maps_[map_of_[layer]]; }
  bool uniform() const { return maps_.size() == 1; }
  // True if each of the positions has a slot at every layer; else the request read others' KV at some of them.
  bool whole() const { return whole_; }

  // The extents with slots of `positions`, from number `first` on. Null ones have none.
  struct Extents {
    int32_t first = 0;
    std::vector<ExtentKeep> list;
  };
  Extents extents_of(Run positions) const;
  PinnedPages pin(Run positions) const;
  // The extent with the slot of `pos` at that layer; null: it has none.
  Extent* extent_of(int layer, int32_t pos) const;
  // Side data of the positions (kv/annex.h): of a kind by token a row for each, in order. What has a row keeps it, and
  // what has no slot at kind.layer gets none. REQUIRES: the store has pages_to_attach() free pages; somebody uses the
  // extents: a table that wrote them, or a placement.
  void attach(AnnexKind kind, Run positions, std::span<const std::byte> bytes) const;
  int64_t pages_to_attach(AnnexKind kind, Run positions, int64_t bytes) const;
  // Those of the positions that have a slot in the extent at some layer.
  Runs inside(const Extent& extent, Run positions) const;

 private:
  void cover(int by);
  const PageStore& store_;
  const Run positions_;
  const std::vector<SlotMap> maps_;
  const std::vector<uint16_t> map_of_;
  int32_t first_ = 0;
  std::vector<ExtentKeep> extents_;
  std::vector<int32_t> pages_;  // of one map, for cover(): its memory is there before, so that nothing throws halfway
  bool whole_ = true;
};

// Tokens [offset, offset + count) of a segment are at positions [pos, pos + count) of a request. It pins the extents
// that they are in, and no more.
struct Placement {
  Placement(std::shared_ptr<const KvSegment> from, int32_t offset, int32_t count, int32_t pos)
      : segment(std::move(from)),
        offset(offset),
        count(count),
        pos(pos),
        pages(segment->pin({segment->pos() + offset, segment->pos() + offset + count})) {}
  std::shared_ptr<const KvSegment> segment;
  int32_t offset = 0, count = 0, pos = 0;
  PinnedPages pages;
  int32_t shift() const { return pos - (segment->pos() + offset); }
  Run positions() const { return {pos, pos + count}; }
};

// What a KV head keeps: what every row still to come sees of it.
using HeadKeep = HeadWindow;

// Layers [begin, end).
struct LayerRange {
  int begin = 0, end = 0;
};

class KeptKeys;

// `layer` is the model's. Those that read another's KV (KvShape::readers) see what that one has; all that is written,
// kept, copied or counted by layer is of the layers that have KV, below KvShape::L.
class PageTable {
 public:
  // What `ropes` points to must outlive the table.
  PageTable(PageStore& store, LayerRopes ropes);
  ~PageTable();  // what it pinned becomes idle, the conversation's end first

  // Whose its own pages are, those to come included.
  void give_to(OwnerId owner) { pages_->give_to(owner); }
  OwnerId owner() const { return pages_->owner(); }

  // REQUIRES: sorted after the last placement, disjoint from it, before any private slot is added.
  // realign: queries are rotated by the shift; without it keys are read as if they were where they were computed.
  void place(Placement placement, bool realign = true);
  // Places what another request computed of the same text at the same positions, on top of place(): where the segment
  // has a slot it hides what is placed there. REQUIRES: as for place(), among overlays; no shift.
  void overlay(Placement placement);
  std::span<const Placement> placements() const { return placements_; }
  std::span<const Placement> overlays() const { return overlays_; }
  // All that place() was given, including what copy_in() has taken over since.
  std::span<const Placement> first_placements() const { return first_placements_; }

  // What each (layer * G + head) keeps from now on; empty: all keep all. chunk: add() reserves room for that many rows
  // at once; 0 when one row at a time follows (what was reserved goes back). REQUIRES: can_keep(heads).
  void keep(std::vector<HeadKeep> heads, int32_t chunk);
  // Errors: kInternal, naming layer and head: a head that dropped pages cannot keep more than before.
  Status can_keep(std::span<const HeadKeep> heads) const;
  // Rows before `next` have attended at these layers: pages that no later row needs are given back.
  void passed(LayerRange layers, int32_t next);
  // Holds the pages of the private slots of `rows` at the heads that keep less than all; called before the rows are
  // written. pages_for_rows() is the number of pages that it takes. REQUIRES: the store has that many free ones.
  int64_t pages_for_rows(LayerRange layers, Run rows) const;
  void hold(LayerRange layers, Run rows);
  // The same for the private slots that the row at `next` sees (a session that was imported).
  int64_t pages_for_kept(int32_t next) const;
  void hold_kept(int32_t next);
  HeadKeep keeps(int layer, int head) const {
    return keeps_.empty() ? HeadKeep{} : keeps_[layer * store_.shape().G + head];
  }
  bool whole() const { return local_.empty() && dropped_ == 0 && !kept_; }  // every head has every position
  int64_t dropped_pages() const { return dropped_; }                        // since the start

  // Pages that add() would take; for heads that keep less than all, the most that they need at once. write[l] is the
  // index in `sets` of the positions to be written at layer l.
  int64_t pages_for(std::span<const Runs> sets, std::span<const uint16_t> write) const;
  // Gives private slots. REQUIRES: the store has pages_for() free pages.
  void add(std::span<const Runs> sets, std::span<const uint16_t> write);
  // Positions [pos, pos + count) at all layers: a decode step. Rows before pos have attended at all of them. More than
  // one are drafts: REQUIRES: whole().
  int64_t pages_for_next(int32_t count = 1) const;
  void add_next(int32_t pos, int32_t count = 1);
  // Forgets the positions from pos on, and gives back pages that hold no other: drafts that were wrong, tokens that a
  // stage guessed. REQUIRES: whole(); theirs are the last slots that were handed out; none is published.
  void truncate(int32_t pos);

  // Of each (layer * G + head) only these positions stay, for good: their rows are packed together, and all other pages
  // and placements are let go of. Rows to come are added as before; passed() means nothing from then on. REQUIRES: the
  // prompt is computed; nothing of its own is published; the store has pages_to_compact() free pages.
  int64_t pages_to_compact(std::span<const Runs> kept) const;
  void compact(std::span<const Runs> kept);
  bool compacted() const { return kept_ != nullptr; }
  // From then on: the same again for one head, which takes no page; and the slots that it has, with those of keys that
  // no row sees any more.
  void compact(int layer, int head, const Runs& kept);
  int32_t slots_of(int layer, int head) const;

  // Writes the K and V of `pos` at `layer` (G x E fp32 each), converting to the pool's type. REQUIRES: pos has a slot.
  void write(int layer, int32_t pos, const float* k, const float* v);
  // The same for one head, from rows of the pool's type. REQUIRES: pos has a slot, whose page the head holds.
  void restore(int layer, int head, int32_t pos, const std::byte* k, const std::byte* v);
  // What was placed at (layer, pos), in its shared segment, whatever was copied in or written since. rotation is what
  // realigns its K (null: it needs none). pages is null if nothing was placed there.
  struct Placed {
    const PinnedPages* pages = nullptr;
    int32_t slot = 0;
    const float* rotation = nullptr;
  };
  Placed placed(int layer, int32_t pos) const;
  // The private copy of (layer, head, pos) as bytes; null if it has no private slot, or its head dropped it.
  const std::byte* private_k(int layer, int head, int32_t pos) const;

  // Appends the keys of (layer, head) that a row at a position in `rows` may see under `mask`: sorted by position, each
  // position once.
  void resolve(int layer, int head, Run rows, const KeyMask& mask, std::vector<KvSpan>& spans) const;
  // Appends the keys at these positions, sorted runs, as far as there are any.
  void resolve(int layer, int head, std::span<const Run> positions, std::vector<KvSpan>& spans) const;
  // From now on, until the table changes, several threads may resolve keys of this layer.
  void prepare_reads(int layer) const {
    if (!kept_) atoms(store_.shape().kv_layer(layer));
  }
  // Positions that are placed or have a private slot at `layer`.
  Runs known(int layer) const;

  // The copying placement: copies every placement with a shift into private slots at all layers, with its keys rotated
  // once, and drops the placement. It takes copy_pages() pages. REQUIRES: the store has that many free ones.
  int64_t copy_pages() const;
  void copy_in(const Backend& backend, const AttendShape& shape);

  // Placements from position `from` on are read as if they were stored in 8 bits (kv/stored_int8.cc): a private copy
  // takes their place, in int8_pages() pages. REQUIRES: the store has that many free ones; nothing is written yet.
  int64_t int8_pages(int32_t from) const;
  void read_as_int8(int32_t from);

  // Whether `positions` are private at every layer, so that they can be published.
  bool owns(Run positions) const;
  Runs owned() const;  // all such positions
  // The private ones of the positions as an immutable segment for the cache; null if there are none. This table may go
  // on growing. REQUIRES: whole(): a table whose heads keep less publishes nothing, since its slots lack pages, and
  // what is there was computed by rows that saw less than in a dense pass.
  std::shared_ptr<const KvSegment> publish(Run positions) const;

  const LayerRopes& ropes() const { return ropes_; }
  int64_t private_pages() const { return pages_->pages(); }
  int64_t unshared_pages() const { return pages_->unshared_pages(); }
  int64_t held_pages(int layer, int head) const { return pages_->held(layer, head); }
  int64_t spare_pages() const { return pages_->spare(); }  // reserved for the heads that keep less than all
  const KvShape& shape() const { return store_.shape(); }

 private:
  struct Atom {  // keys that are contiguous in memory
    int32_t pos, count, slot;
    int32_t source;  // kPrivate; 0, 1, ...: a placement; -2, -3, ...: an overlay
  };
  static constexpr int32_t kPrivate = -1;
  // A head that keeps less than all.
  struct LocalHead {
    int layer, head;
    HeadKeep keep;
    int32_t first = 0;      // pages before it were dropped, or are never dropped
    int64_t next_drop = 0;  // no page can be dropped while the layer's passed_ is below this
  };
  struct PageRange {  // the lowest and the highest position in a page of slots
    int32_t low = INT32_MAX, high = -1;
  };
  using SlotCounts = std::vector<int32_t>;  // by layer, after an add()
  const std::vector<Atom>& atoms(int layer) const;
  void find(int layer, int head, const Atom& atom, Run keys, KvSpan& span) const;
  int32_t slot_of(int layer, int head, int32_t pos) const;  // -1: no private one
  void split_pages(std::vector<Atom>& out, Atom atom) const;
  void add_atoms(std::vector<Atom>& out, const Placement& placed, int32_t source, int layer, const Runs& hidden) const;
  const PinnedPages& pages_of(const Atom& atom) const;
  Runs placed_from(int32_t from) const;
  void copy_as_int8(size_t placement, int layer, int head);
  void copy_atom(const Backend& backend, const AttendShape& attend, int layer, const Atom& atom);
  SlotCounts slots_after(std::span<const Runs> sets, std::span<const uint16_t> write) const;
  void hand_out(std::span<const Runs> sets, std::span<const uint16_t> write);
  int64_t pages_of_whole(const SlotCounts& slots) const;
  int64_t peak_of_local(const SlotCounts& slots) const;
  void grow_whole();
  void drop_passed(LocalHead& head);
  std::vector<int32_t> page_numbers(int layer, const Runs& rows) const;
  void find_ranges();
  void slide(int32_t pos);
  bool is_local(int layer, int head) const { return !keeps(layer, head).all(); }
  std::vector<int32_t> kept_pages(const LocalHead& head, int32_t next) const;
  const SlotMap& slot_map(int layer) const { return maps_[map_of_[layer]]; }

  PageStore& store_;
  using Rotation = std::shared_ptr<const std::vector<float>>;
  struct Rotations {  // of one placement, by kind of RoPE; null: shift 0
    Rotation kind[2];
    explicit operator bool() const { return kind[0] != nullptr; }
  };

  const LayerRopes ropes_;
  std::vector<Placement> placements_, first_placements_, overlays_;
  std::vector<Rotations> rotations_, first_rotations_;  // per placement
  std::unordered_map<int32_t, Rotations> of_shift_;     // of all that was placed and turned
  bool uniform_ = true;                                 // every placed segment has the same slots in all layers
  std::unique_ptr<PageList> pages_;
  std::unique_ptr<KeptKeys> kept_;              // after compact(): it knows where all keys are
  std::vector<SlotMap> maps_;                   // distinct ones
  std::vector<uint16_t> map_of_;                // per layer
  std::vector<HeadKeep> keeps_;                 // L * G, or empty: all keep all
  std::vector<LocalHead> local_;                // by layer and head
  std::vector<std::vector<PageRange>> ranges_;  // by map and page number, if there are local heads
  std::vector<int32_t> passed_;                 // per layer: rows before it have attended
  int32_t chunk_ = 0;
  int64_t dropped_ = 0;
  mutable std::unordered_map<int, std::vector<Atom>> atoms_;  // by layer class; dropped when a map or placement changes
};

// cos then sin (R/2 each) of shift * inv_freq.
std::vector<float> rotation(const RopeConfig& rope, int32_t shift);

}  // namespace kvilt
