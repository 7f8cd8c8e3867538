#include "kv/page_table.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/check.h"
#include "kv/kept_keys.h"
#include "tensor/kv_row.h"

namespace kvilt {

std::vector<float> rotation(const RopeConfig& rope, int32_t shift) {
  const size_t half = rope.inv_freq.size();
  std::vector<float> out(2 * half);
  for (size_t i = 0; i < half; ++i) {
    const double angle = shift * rope.inv_freq[i];
    out[i] = static_cast<float>(std::cos(angle));
    out[half + i] = static_cast<float>(std::sin(angle));
  }
  return out;
}

int32_t SlotMap::slot_of(int32_t pos) const {
  const auto after = std::ranges::upper_bound(runs, pos, {}, &SlotRun::pos);
  if (after == runs.begin()) return -1;
  const SlotRun& run = *std::prev(after);
  return pos < run.pos + run.count ? run.slot + pos - run.pos : -1;
}

Runs SlotMap::positions() const {
  Runs out;
  for (const SlotRun& run : runs) {
    if (!out.empty() && out.back().end == run.pos) {
      out.back().end += run.count;
    } else {
      out.push_back({run.pos, run.pos + run.count});
    }
  }
  return out;
}

std::vector<SlotRun> SlotMap::within(Run run) const {
  std::vector<SlotRun> out;
  auto it = std::upper_bound(runs.begin(), runs.end(), run.begin,
                             [](int32_t p, const SlotRun& r) { return p < r.pos + r.count; });
  for (; it != runs.end() && it->pos < run.end; ++it) {
    const int32_t begin = std::max(it->pos, run.begin), end = std::min(it->pos + it->count, run.end);
    out.push_back({begin, end - begin, it->slot + begin - it->pos});
  }
  return out;
}

bool SlotMap::append(Run wanted) {
  if (runs.empty()) return false;
  SlotRun& last = runs.back();
  if (wanted.begin != last.pos + last.count || last.slot + last.count != slots) return false;
  last.count += wanted.size();
  slots += wanted.size();
  return true;
}

void SlotMap::truncate(int32_t pos) {
  while (!runs.empty() && runs.back().pos + runs.back().count > pos) {
    SlotRun& last = runs.back();
    CHECK(last.slot + last.count == slots);
    const int32_t gone = std::min(last.count, last.pos + last.count - pos);
    last.count -= gone;
    slots -= gone;
    if (last.count == 0) runs.pop_back();
  }
}

void SlotMap::add(const Runs& wanted) {
  if (wanted.size() == 1 && append(wanted[0])) return;
  for (const Run& fresh : subtract(wanted, positions())) {
    if (!runs.empty() && runs.back().pos + runs.back().count == fresh.begin &&
        runs.back().slot + runs.back().count == slots) {
      runs.back().count += fresh.size();  // the common case: the next positions in the next slots
    } else {
      runs.push_back({fresh.begin, fresh.size(), slots});
    }
    slots += fresh.size();
  }
  std::ranges::sort(runs, {}, &SlotRun::pos);
}

PageTable::PageTable(PageStore& store, LayerRopes ropes)
    : store_(store),
      ropes_(ropes),
      pages_(std::make_unique<PageList>(store)),
      maps_(1),
      map_of_(store.shape().L, 0),
      passed_(store.shape().L, 0) {}

KvSegment::KvSegment(Run positions, std::vector<SlotMap> maps, std::vector<uint16_t> map_of, const PageList& pages)
    : store_(pages.store()), positions_(positions), maps_(std::move(maps)), map_of_(std::move(map_of)) {
  const int32_t per_extent = store_.extent_slots(), P = store_.shape().P;
  int32_t first = INT32_MAX, last = -1;
  size_t most = 0;
  for (const SlotMap& map : maps_) {
    int32_t here = 0;
    size_t pages_here = 0;
    for (const SlotRun& run : map.runs) {
      pages_here += static_cast<size_t>((run.slot + run.count - 1) / P - run.slot / P + 1);
      first = std::min(first, run.slot / per_extent);
      last = std::max(last, (run.slot + run.count - 1) / per_extent);
      here += run.count;
    }
    whole_ = whole_ && here == positions_.size();
    most = std::max(most, pages_here);
  }
  pages_.reserve(most);
  first_ = first;
  for (int32_t i = first; i <= last; ++i) {
    const bool there = i < static_cast<int32_t>(pages.extents().size());
    extents_.emplace_back(there ? pages.extents()[i].get() : nullptr);
  }
  cover(1);
}

KvSegment::~KvSegment() {
  cover(-1);
  while (!extents_.empty()) extents_.pop_back();
}

// Tells every extent in which of its pages this segment has slots.
void KvSegment::cover(int by) {
  const int32_t P = store_.shape().P, per_extent = store_.extent_pages();
  for (size_t m = 0; m < maps_.size(); ++m) {
    pages_.clear();
    for (const SlotRun& run : maps_[m].runs) {
      for (int32_t page = run.slot / P; page <= (run.slot + run.count - 1) / P; ++page) pages_.push_back(page);
    }
    std::ranges::sort(pages_);
    pages_.erase(std::unique(pages_.begin(), pages_.end()), pages_.end());
    for (size_t layer = 0; layer < map_of_.size(); ++layer) {
      if (map_of_[layer] != m) continue;
      for (const int32_t page : pages_) {
        if (const ExtentKeep& extent = extents_[page / per_extent - first_])
          extent->cover(static_cast<int>(layer), page % per_extent, by);
      }
    }
  }
}

KvSegment::Extents KvSegment::extents_of(Run positions) const {
  const int32_t per_extent = store_.extent_slots();
  std::vector<bool> wanted(extents_.size());
  for (const SlotMap& map : maps_) {
    for (const SlotRun& run : map.within(positions)) {
      for (int32_t i = run.slot / per_extent; i <= (run.slot + run.count - 1) / per_extent; ++i)
        wanted[i - first_] = true;
    }
  }
  Extents out;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i] && out.list.empty()) continue;
    if (out.list.empty()) out.first = first_ + static_cast<int32_t>(i);
    out.list.push_back(wanted[i] ? extents_[i] : ExtentKeep());
  }
  while (!out.list.empty() && !out.list.back()) out.list.pop_back();
  return out;
}

PinnedPages KvSegment::pin(Run positions) const {
  CHECK(positions.begin >= positions_.begin && positions.end <= positions_.end);
  const Extents extents = extents_of(positions);
  return {store_, extents.first, extents.list};
}

Extent* KvSegment::extent_of(int layer, int32_t pos) const {
  CHECK(layer >= 0 && layer < store_.shape().layers());
  const int32_t slot = map(store_.shape().kv_layer(layer)).slot_of(pos);
  return slot < 0 ? nullptr : extents_[slot / store_.extent_slots() - first_].get();
}

Runs KvSegment::inside(const Extent& extent, Run positions) const {
  const int32_t i = extent.number() - first_, slots = store_.extent_slots();
  if (i < 0 || i >= static_cast<int32_t>(extents_.size()) || extents_[i].get() != &extent) return {};
  const int32_t begin = extent.number() * slots, end = begin + slots;
  Runs out;
  for (const SlotMap& map : maps_) {
    for (const SlotRun& run : map.within(positions)) {
      const int32_t from = std::max(run.slot, begin), to = std::min(run.slot + run.count, end);
      if (from < to) out.push_back({run.pos + from - run.slot, run.pos + to - run.slot});
    }
  }
  return normalize(std::move(out));
}

PageTable::~PageTable() {
  kept_.reset();
  pages_.reset();
  while (!overlays_.empty()) overlays_.pop_back();
  placements_.clear();
  while (!first_placements_.empty()) first_placements_.pop_back();
}

void PageTable::place(Placement placement, bool realign) {
  CHECK(placement.count > 0);
  CHECK(placements_.empty() || placements_.back().pos + placements_.back().count <= placement.pos);
  Rotations rotations;
  if (const int32_t shift = placement.shift(); shift != 0 && realign) {
    rotations = of_shift_[shift];  // with one rotation, pieces share one rotated query
    for (int kind = 0; kind < ropes_.kinds() && !rotations.kind[kind]; ++kind) {
      rotations.kind[kind] = std::make_shared<const std::vector<float>>(rotation(ropes_.of_kind(kind), shift));
    }
    of_shift_[shift] = rotations;
  }
  uniform_ = uniform_ && placement.segment->uniform();
  first_placements_.push_back(placement);
  first_rotations_.push_back(rotations);
  placements_.push_back(std::move(placement));
  rotations_.push_back(std::move(rotations));
  atoms_.clear();
}

void PageTable::overlay(Placement placement) {
  CHECK(placement.count > 0 && placement.shift() == 0);
  CHECK(overlays_.empty() || overlays_.back().pos + overlays_.back().count <= placement.pos);
  uniform_ = uniform_ && placement.segment->uniform();
  overlays_.push_back(std::move(placement));
  atoms_.clear();
}

PageTable::SlotCounts PageTable::slots_after(std::span<const Runs> sets, std::span<const uint16_t> write) const {
  std::map<std::pair<uint16_t, uint16_t>, int32_t> slots;  // (map, set) -> slots after add()
  SlotCounts out;
  for (size_t layer = 0; layer < map_of_.size(); ++layer) {
    const SlotMap& map = maps_[map_of_[layer]];
    if (layer >= write.size()) {
      out.push_back(map.slots);
      continue;
    }
    const auto [it, fresh] = slots.try_emplace(std::pair(map_of_[layer], write[layer]));
    if (fresh) it->second = map.slots + static_cast<int32_t>(count(subtract(sets[write[layer]], map.positions())));
    out.push_back(it->second);
  }
  return out;
}

int64_t PageTable::pages_for(std::span<const Runs> sets, std::span<const uint16_t> write) const {
  const SlotCounts slots = slots_after(sets, write);
  return std::max<int64_t>(0, pages_of_whole(slots) + peak_of_local(slots) - pages_->spare());
}

void PageTable::add(std::span<const Runs> sets, std::span<const uint16_t> write) {
  const int64_t local = local_.empty() ? 0 : peak_of_local(slots_after(sets, write));
  hand_out(sets, write);
  grow_whole();
  if (!local_.empty()) pages_->reserve(local);
}

// Assigns slots without taking pages.
void PageTable::hand_out(std::span<const Runs> sets, std::span<const uint16_t> write) {
  std::map<std::pair<uint16_t, int>, uint16_t> next;  // (map, set; -1: none) -> new map
  std::vector<SlotMap> maps;
  for (size_t layer = 0; layer < map_of_.size(); ++layer) {
    const auto key = std::pair(map_of_[layer], layer < write.size() ? int{write[layer]} : -1);
    const auto [it, fresh] = next.emplace(key, static_cast<uint16_t>(maps.size()));
    if (fresh) {
      maps.push_back(maps_[key.first]);
      if (key.second >= 0) maps.back().add(sets[key.second]);
    }
    map_of_[layer] = it->second;
  }
  maps_ = std::move(maps);
  atoms_.clear();
  find_ranges();
}

int64_t PageTable::pages_for_next(int32_t count) const {
  CHECK(count == 1 || whole());
  if (kept_) return kept_->pages_for_next();
  const KvShape& shape = store_.shape();
  // Most steps need none: all maps have room in their last page, and heads that keep all hold it.
  const auto has_room = [&](const SlotMap& map) {
    return map.slots % shape.P != 0 && map.slots % shape.P + count <= shape.P;
  };
  if (local_.empty() && std::ranges::all_of(maps_, has_room)) return 0;
  int64_t pages = 0;
  for (int layer = 0; layer < shape.L; ++layer) {
    const int32_t slot = slot_map(layer).slots;
    for (int32_t page = slot / shape.P; page <= (slot + count - 1) / shape.P; ++page) {
      for (int head = 0; head < shape.G; ++head) pages += pages_->held(layer, head, page) ? 0 : 1;
    }
  }
  return std::max<int64_t>(0, pages - pages_->spare());
}

void PageTable::add_next(int32_t pos, int32_t count) {
  CHECK(count == 1 || whole());
  if (kept_) return kept_->add_next(pos);
  const Run added{pos, pos + count};
  bool last = placements_.empty() || placements_.back().pos + placements_.back().count <= pos;
  last = last && (overlays_.empty() || overlays_.back().pos + overlays_.back().count <= pos);
  for (SlotMap& map : maps_) {
    last = last && (map.runs.empty() || map.runs.back().pos + map.runs.back().count <= pos);
    if (!map.append(added)) map.add({added});
  }
  grow_whole();
  if (!local_.empty()) slide(pos);
  if (!last) {
    atoms_.clear();
    return;
  }
  for (auto& [layer, atoms] : atoms_) {  // some keys more at the end: a decode step rebuilds nothing
    for (int32_t next = added.begin; next < added.end; ++next) {
      const int32_t slot = slot_map(layer).slot_of(next);
      const bool same_page = slot % store_.shape().P != 0 && !atoms.empty() && atoms.back().source == kPrivate &&
                             atoms.back().pos + atoms.back().count == next &&
                             atoms.back().slot + atoms.back().count == slot;
      if (same_page) {
        ++atoms.back().count;
      } else {
        atoms.push_back({next, 1, slot, kPrivate});
      }
    }
  }
}

void PageTable::truncate(int32_t pos) {
  CHECK(whole());
  for (SlotMap& map : maps_) map.truncate(pos);
  const KvShape& shape = store_.shape();
  for (int layer = 0; layer < shape.L; ++layer) {
    for (int head = 0; head < shape.G; ++head) pages_->shrink(layer, head, slot_map(layer).slots);
  }
  for (auto& [layer, atoms] : atoms_) {
    while (!atoms.empty() && atoms.back().pos >= pos) {
      CHECK(atoms.back().source == kPrivate);
      atoms.pop_back();
    }
    if (!atoms.empty()) atoms.back().count = std::min(atoms.back().count, pos - atoms.back().pos);
  }
}

int32_t PageTable::slot_of(int layer, int head, int32_t pos) const {
  return kept_ ? kept_->slot_of(layer, head, pos) : slot_map(layer).slot_of(pos);
}

void PageTable::write(int layer, int32_t pos, const float* k, const float* v) {
  const KvShape& shape = store_.shape();
  int32_t slot = slot_of(layer, 0, pos);
  for (int head = 0; head < shape.G; ++head) {
    if (kept_ && head > 0) slot = slot_of(layer, head, pos);
    CHECK(slot >= 0);
    encode_kv_row(shape.dtype, shape.E, k + head * shape.E, pages_->k(layer, head, slot));
    encode_kv_row(shape.dtype, shape.E, v + head * shape.E, pages_->v(layer, head, slot));
  }
}

void PageTable::restore(int layer, int head, int32_t pos, const std::byte* k, const std::byte* v) {
  const int32_t slot = slot_of(layer, head, pos);
  CHECK(slot >= 0);
  const auto bytes = static_cast<size_t>(store_.shape().row_bytes());
  std::memcpy(pages_->k(layer, head, slot), k, bytes);
  std::memcpy(pages_->v(layer, head, slot), v, bytes);
}

const std::byte* PageTable::private_k(int layer, int head, int32_t pos) const {
  layer = store_.shape().kv_layer(layer);
  const int32_t slot = slot_of(layer, head, pos);
  return slot < 0 || !pages_->held(layer, head, slot / store_.shape().P) ? nullptr : pages_->k(layer, head, slot);
}

namespace {
// The placement that holds the position; null: none.
const Placement* at(std::span<const Placement> placements, int32_t pos) {
  const auto after = std::ranges::upper_bound(placements, pos, {}, &Placement::pos);
  if (after == placements.begin()) return nullptr;
  const Placement& placement = *std::prev(after);
  return pos < placement.pos + placement.count ? &placement : nullptr;
}
}  // namespace

PageTable::Placed PageTable::placed(int layer, int32_t pos) const {
  layer = store_.shape().kv_layer(layer);
  if (const Placement* over = at(overlays_, pos)) {
    if (const int32_t slot = over->segment->map(layer).slot_of(pos); slot >= 0) return {&over->pages, slot, nullptr};
  }
  const Placement* placement = at(first_placements_, pos);
  if (!placement) return {};
  const Rotations& rotations = first_rotations_[placement - first_placements_.data()];
  const auto* rotation = rotations.kind[ropes_.kind(layer)].get();
  const int32_t slot = placement->segment->map(layer).slot_of(pos - placement->shift());
  return {&placement->pages, slot, rotation ? rotation->data() : nullptr};
}

void PageTable::split_pages(std::vector<Atom>& out, Atom atom) const {
  const int32_t P = store_.shape().P;
  while (atom.count > 0) {
    const int32_t here = std::min(atom.count, P - atom.slot % P);
    out.push_back({atom.pos, here, atom.slot, atom.source});
    atom = {atom.pos + here, atom.count - here, atom.slot + here, atom.source};
  }
}

const PinnedPages& PageTable::pages_of(const Atom& atom) const {
  return atom.source >= 0 ? placements_[atom.source].pages : overlays_[-2 - atom.source].pages;
}

// Adds what the placement has at the layer, except at hidden positions.
void PageTable::add_atoms(std::vector<Atom>& out, const Placement& placed, int32_t source, int layer,
                          const Runs& hidden) const {
  const SlotMap& map = placed.segment->map(layer);
  const int32_t shift = placed.shift();
  // Only the hidden runs near the placement matter: with many of both, looking at all for each would be quadratic.
  const auto first = std::ranges::upper_bound(hidden, placed.pos, {}, &Run::end);
  const auto last = std::lower_bound(first, hidden.end(), placed.pos + placed.count,
                                     [](const Run& run, int32_t end) { return run.begin < end; });
  for (const Run& left : subtract(Runs{placed.positions()}, Runs(first, last))) {
    for (const SlotRun& part : map.within({left.begin - shift, left.end - shift}))
      out.push_back({part.pos + shift, part.count, part.slot, source});
  }
}

const std::vector<PageTable::Atom>& PageTable::atoms(int layer) const {
  const int kind = uniform_ && maps_.size() == 1 ? 0 : layer;
  // Found and not emplaced: several threads may look (prepare_reads).
  if (const auto known = atoms_.find(kind); known != atoms_.end()) return known->second;
  std::vector<Atom> out;
  const SlotMap& own = slot_map(layer);
  std::vector<Atom> whole;
  for (const SlotRun& run : own.runs) whole.push_back({run.pos, run.count, run.slot, kPrivate});
  Runs hidden = own.positions(), over;
  for (size_t i = 0; i < overlays_.size(); ++i) {
    add_atoms(whole, overlays_[i], -2 - static_cast<int32_t>(i), layer, hidden);
    for (const SlotRun& part : overlays_[i].segment->map(layer).within(overlays_[i].positions()))
      over.push_back({part.pos, part.pos + part.count});
  }
  if (!over.empty()) hidden = unite(hidden, normalize(std::move(over)));
  for (size_t i = 0; i < placements_.size(); ++i)
    add_atoms(whole, placements_[i], static_cast<int32_t>(i), layer, hidden);
  std::ranges::sort(whole, {}, &Atom::pos);
  for (const Atom& atom : whole) split_pages(out, atom);
  return atoms_[kind] = std::move(out);
}

void PageTable::resolve(int layer, int head, std::span<const Run> positions, std::vector<KvSpan>& spans) const {
  layer = store_.shape().kv_layer(layer);
  if (kept_) {
    for (const Run& run : positions) kept_->resolve(layer, head, run, spans);
    return;
  }
  const std::vector<Atom>& all = atoms(layer);
  auto from = all.begin();
  for (const Run& run : positions) {
    const auto ends_by = [&](const Atom& atom) { return atom.pos + atom.count <= run.begin; };
    // Keys that an answer chose are many runs, a page or two apart: TidalDecode's 1,024 of 16,000 are some 700.
    for (ptrdiff_t step = 1; from != all.end() && ends_by(*from); step *= 2) {
      const auto last = from + std::min(step, all.end() - from);
      from = std::partition_point(from + 1, last, ends_by);
      if (from != last) break;
    }
    for (auto atom = from; atom != all.end(); ++atom) {
      const int32_t begin = std::max(atom->pos, run.begin), end = std::min(atom->pos + atom->count, run.end);
      if (begin >= end) break;
      find(layer, head, *atom, {begin, end}, spans.emplace_back());
    }
  }
}

// Written where it stays: copied, each waited 10 ns for its own stores.
void PageTable::find(int layer, int head, const Atom& atom, Run keys, KvSpan& span) const {
  const int32_t slot = atom.slot + keys.begin - atom.pos;
  const std::byte* k;
  if (atom.source == kPrivate) {
    k = pages_->k(layer, head, slot);
  } else {
    k = pages_of(atom).k(layer, head, slot);
    const auto* rotation = atom.source < 0 ? nullptr : rotations_[atom.source].kind[ropes_.kind(layer)].get();
    if (rotation) span.rotation = rotation->data();
  }
  span.k = k;
  span.v = k + store_.shape().v_after_k();
  span.pos = keys.begin;
  span.count = keys.size();
}

void PageTable::resolve(int layer, int head, Run rows, const KeyMask& mask, std::vector<KvSpan>& spans) const {
  const int32_t low = mask.reach < 0 ? 0 : std::max(0, rows.begin - mask.reach);
  const int32_t near = std::max(low, rows.begin - mask.window);
  const bool dense = mask.window < 0 || rows.end - 1 >= mask.dense_from;
  const Run seen[] = {{low, dense ? rows.end : std::min(mask.sink, near)}, {near, rows.end}};
  resolve(layer, head, std::span(seen, dense ? 1 : 2), spans);
}

Runs PageTable::known(int layer) const {
  layer = store_.shape().kv_layer(layer);
  Runs placed;
  for (const Placement& placement : placements_) placed.push_back(placement.positions());
  for (const Placement& placement : overlays_) {
    for (const SlotRun& part : placement.segment->map(layer).within(placement.positions()))
      placed.push_back({part.pos, part.pos + part.count});
  }
  return unite(normalize(std::move(placed)), slot_map(layer).positions());
}

int64_t PageTable::copy_pages() const {
  Runs shifted;
  for (const Placement& p : placements_) {
    if (rotations_[&p - placements_.data()]) shifted.push_back({p.pos, p.pos + p.count});
  }
  const std::vector<Runs> sets{normalize(std::move(shifted))};
  const SlotCounts slots = slots_after(sets, std::vector<uint16_t>(map_of_.size(), 0));
  int64_t pages = pages_of_whole(slots);
  for (const LocalHead& head : local_) pages += pages_->pages_of(slots[head.layer]);
  return pages;
}

void PageTable::copy_in(const Backend& backend, const AttendShape& attend) {
  const KvShape& shape = store_.shape();
  Runs copied;
  for (size_t i = 0; i < placements_.size(); ++i) {
    if (rotations_[i]) copied.push_back(placements_[i].positions());
  }
  copied = normalize(std::move(copied));
  std::vector<std::vector<Atom>> from;  // by layer: what is seen there now
  for (int layer = 0; layer < shape.L; ++layer) from.push_back(atoms(layer));
  hand_out(std::vector<Runs>{copied}, std::vector<uint16_t>(map_of_.size(), 0));
  grow_whole();
  for (const Run& run : copied) hold({0, shape.L}, run);
  for (int layer = 0; layer < shape.L; ++layer) {
    for (const Atom& atom : from[layer]) {
      if (atom.source != kPrivate && contains(copied, atom.pos)) copy_atom(backend, attend, layer, atom);
    }
  }
  for (size_t i = placements_.size(); i-- > 0;) {
    if (!rotations_[i]) continue;
    placements_.erase(placements_.begin() + static_cast<ptrdiff_t>(i));
    rotations_.erase(rotations_.begin() + static_cast<ptrdiff_t>(i));
  }
  atoms_.clear();
}

// Copies rows of one page to the private slots of their positions, with K rotated.
void PageTable::copy_atom(const Backend& backend, const AttendShape& attend, int layer, const Atom& atom) {
  const KvShape& shape = store_.shape();
  const PinnedPages& pages = pages_of(atom);
  const auto* rotation = atom.source < 0 ? nullptr : rotations_[atom.source].kind[ropes_.kind(layer)].get();
  for (int32_t done = 0; done < atom.count;) {
    const int32_t slot = slot_map(layer).slot_of(atom.pos + done);
    const int32_t here = std::min(atom.count - done, shape.P - slot % shape.P);
    for (int head = 0; head < shape.G; ++head) {
      const std::byte* k = pages.k(layer, head, atom.slot + done);
      if (rotation) {
        backend.realign(attend, k, rotation->data(), here, pages_->k(layer, head, slot));
      } else {
        std::memcpy(pages_->k(layer, head, slot), k, here * shape.row_bytes());
      }
      std::memcpy(pages_->v(layer, head, slot), pages.v(layer, head, atom.slot + done), here * shape.row_bytes());
    }
    done += here;
  }
}

int64_t PageTable::pages_to_compact(std::span<const Runs> kept) const {
  const int G = store_.shape().G;
  int64_t pages = 0;
  for (int i = 0; i < static_cast<int>(kept.size()); ++i) {
    const int64_t need = pages_->pages_of(static_cast<int32_t>(count(kept[i])));
    pages += std::max<int64_t>(0, need - pages_->held(i / G, i % G));
  }
  return pages;
}

void PageTable::compact(std::span<const Runs> kept) {
  const KvShape& shape = store_.shape();
  CHECK(!kept_ && kept.size() == static_cast<size_t>(shape.L * shape.G));
  for (const ExtentUse& extent : pages_->extents()) CHECK(!extent->kept());  // they are written over
  pages_->reserve(0);
  auto keys = std::make_unique<KeptKeys>(*pages_);
  std::vector<KvSpan> spans;
  for (int i = 0; i < static_cast<int>(kept.size()); ++i) {
    spans.clear();
    for (const Run& run : kept[i]) resolve(i / shape.G, i % shape.G, run, {.window = 0}, spans);
    keys->put(i / shape.G, i % shape.G, spans);
  }
  kept_ = std::move(keys);
  placements_.clear(), rotations_.clear();
  while (!overlays_.empty()) overlays_.pop_back();
  while (!first_placements_.empty()) first_placements_.pop_back();
  first_rotations_.clear();
  keeps_.clear(), local_.clear(), ranges_.clear(), atoms_.clear();
}

void PageTable::compact(int layer, int head, const Runs& kept) {
  CHECK(kept_);
  std::vector<KvSpan> spans;
  for (const Run& run : kept) kept_->resolve(layer, head, run, spans);
  kept_->put(layer, head, spans);
}

int32_t PageTable::slots_of(int layer, int head) const {
  CHECK(kept_);
  return kept_->slots(layer, head);
}

bool PageTable::owns(Run positions) const {
  return std::ranges::all_of(maps_, [&](const SlotMap& map) {
    int32_t own = 0;
    for (const SlotRun& run : map.within(positions)) own += run.count;
    return own == positions.size();
  });
}

Runs PageTable::owned() const {
  Runs out = maps_.front().positions();
  for (size_t i = 1; i < maps_.size(); ++i) out = intersect(out, maps_[i].positions());
  return out;
}

std::shared_ptr<const KvSegment> PageTable::publish(Run run) const {
  CHECK(whole());
  std::vector<SlotMap> maps;
  bool any = false;
  for (const SlotMap& map : maps_) {
    SlotMap& part = maps.emplace_back();
    part.runs = map.within(run);
    part.slots = map.slots;
    any = any || !part.runs.empty();
  }
  return any ? std::make_shared<const KvSegment>(run, std::move(maps), map_of_, *pages_) : nullptr;
}

}  // namespace kvilt
