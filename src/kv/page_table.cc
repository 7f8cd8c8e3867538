#include "kv/page_table.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/check.h"
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
      pages_(std::make_shared<PageList>(store)),
      maps_(1),
      map_of_(store.shape().L, 0),
      passed_(store.shape().L, 0) {}

void PageTable::place(Placement placement, bool realign) {
  CHECK(placement.count > 0 && placement.offset >= 0 &&
        placement.offset + placement.count <= static_cast<int32_t>(placement.segment->tokens.size()));
  CHECK(placements_.empty() || placements_.back().pos + placements_.back().count <= placement.pos);
  Rotations rotations;
  if (const int32_t shift = placement.shift(); shift != 0 && realign) {
    rotations = of_shift_[shift];  // with one rotation, pieces share one rotated query
    for (int kind = 0; kind < ropes_.kinds() && !rotations.kind[kind]; ++kind) {
      rotations.kind[kind] = std::make_shared<const std::vector<float>>(rotation(ropes_.of_kind(kind), shift));
    }
    of_shift_[shift] = rotations;
  }
  uniform_ = uniform_ && placement.segment->maps.size() == 1;
  first_placements_.push_back(placement);
  first_rotations_.push_back(rotations);
  placements_.push_back(std::move(placement));
  rotations_.push_back(std::move(rotations));
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
  find_extents();
}

int64_t PageTable::pages_for_next() const {
  const KvShape& shape = store_.shape();
  int64_t pages = 0;
  for (int layer = 0; layer < shape.L; ++layer) {
    const int32_t slot = slot_map(layer).slots;
    for (int head = 0; head < shape.G; ++head) pages += pages_->held(layer, head, slot / shape.P) ? 0 : 1;
  }
  return std::max<int64_t>(0, pages - pages_->spare());
}

void PageTable::add_next(int32_t pos) {
  bool last = placements_.empty() || placements_.back().pos + placements_.back().count <= pos;
  for (SlotMap& map : maps_) {
    last = last && (map.runs.empty() || map.runs.back().pos + map.runs.back().count <= pos);
    if (!map.append({pos, pos + 1})) map.add({{pos, pos + 1}});
  }
  grow_whole();
  if (!local_.empty()) slide(pos);
  if (!last) {
    atoms_.clear();
    return;
  }
  for (auto& [layer, atoms] : atoms_) {  // one key more at the end: a decode step rebuilds nothing
    const int32_t slot = slot_map(layer).slot_of(pos);
    const bool same_page = slot % store_.shape().P != 0 && !atoms.empty() && atoms.back().placement < 0 &&
                           atoms.back().pos + atoms.back().count == pos &&
                           atoms.back().slot + atoms.back().count == slot;
    if (same_page) {
      ++atoms.back().count;
    } else {
      atoms.push_back({pos, 1, slot, -1});
    }
  }
}

void PageTable::write(int layer, int32_t pos, const float* k, const float* v) {
  const int32_t slot = slot_map(layer).slot_of(pos);
  CHECK(slot >= 0);
  const KvShape& shape = store_.shape();
  for (int head = 0; head < shape.G; ++head) {
    encode_kv_row(shape.dtype, shape.E, k + head * shape.E, pages_->k(layer, head, slot));
    encode_kv_row(shape.dtype, shape.E, v + head * shape.E, pages_->v(layer, head, slot));
  }
}

void PageTable::restore(int layer, int head, int32_t pos, const std::byte* k, const std::byte* v) {
  const int32_t slot = slot_map(layer).slot_of(pos);
  CHECK(slot >= 0);
  const auto bytes = static_cast<size_t>(store_.shape().row_bytes());
  std::memcpy(pages_->k(layer, head, slot), k, bytes);
  std::memcpy(pages_->v(layer, head, slot), v, bytes);
}

const std::byte* PageTable::private_k(int layer, int head, int32_t pos) const {
  const int32_t slot = slot_map(layer).slot_of(pos);
  return slot < 0 || !pages_->held(layer, head, slot / store_.shape().P) ? nullptr : pages_->k(layer, head, slot);
}

PageTable::Placed PageTable::placed(int layer, int32_t pos) const {
  const auto after = std::ranges::upper_bound(first_placements_, pos, {}, &Placement::pos);
  if (after == first_placements_.begin()) return {};
  const Placement& placement = *std::prev(after);
  if (pos >= placement.pos + placement.count) return {};
  const KvSegment& segment = *placement.segment;
  const Rotations& rotations = first_rotations_[std::prev(after) - first_placements_.begin()];
  const auto* rotation = rotations.kind[ropes_.kind(layer)].get();
  const int32_t slot = segment.maps[segment.map_of[layer]].slot_of(pos - placement.shift());
  return {segment.pages.get(), slot, rotation ? rotation->data() : nullptr};
}

void PageTable::split_pages(std::vector<Atom>& out, Atom atom) const {
  const int32_t P = store_.shape().P;
  while (atom.count > 0) {
    const int32_t here = std::min(atom.count, P - atom.slot % P);
    out.push_back({atom.pos, here, atom.slot, atom.placement});
    atom = {atom.pos + here, atom.count - here, atom.slot + here, atom.placement};
  }
}

const std::vector<PageTable::Atom>& PageTable::atoms(int layer) const {
  const auto [it, fresh] = atoms_.try_emplace(uniform_ && maps_.size() == 1 ? 0 : layer);
  std::vector<Atom>& out = it->second;
  if (!fresh) return out;
  const SlotMap& own = slot_map(layer);
  std::vector<Atom> whole;
  for (const SlotRun& run : own.runs) whole.push_back({run.pos, run.count, run.slot, -1});
  const Runs hidden = own.positions();
  for (size_t i = 0; i < placements_.size(); ++i) {
    const Placement& placed = placements_[i];
    const SlotMap& map = placed.segment->maps[placed.segment->map_of[layer]];
    const int32_t shift = placed.shift();
    const Run piece{placed.pos, placed.pos + placed.count};
    const auto near = std::ranges::partition_point(hidden, [&](const Run& run) { return run.end <= piece.begin; });
    for (const Run& left : subtract({&piece, 1}, {near, hidden.end()})) {
      for (const SlotRun& part : map.within({left.begin - shift, left.end - shift})) {
        whole.push_back({part.pos + shift, part.count, part.slot, static_cast<int32_t>(i)});
      }
    }
  }
  std::ranges::sort(whole, {}, &Atom::pos);
  for (const Atom& atom : whole) split_pages(out, atom);
  return out;
}

void PageTable::resolve(int layer, int head, Run rows, const KeyMask& mask, std::vector<KvSpan>& spans) const {
  const std::vector<Atom>& all = atoms(layer);
  const auto append = [&](Run keys) {
    const auto ends_by = [&](const Atom& atom) { return atom.pos + atom.count <= keys.begin; };
    for (auto atom = std::partition_point(all.begin(), all.end(), ends_by); atom != all.end(); ++atom) {
      const int32_t begin = std::max(atom->pos, keys.begin), end = std::min(atom->pos + atom->count, keys.end);
      if (begin >= end) return;
      const bool own = atom->placement < 0;
      const auto placement = static_cast<size_t>(atom->placement);
      const PageList& pages = own ? *pages_ : *placements_[placement].segment->pages;
      const auto* rotation = own ? nullptr : rotations_[placement].kind[ropes_.kind(layer)].get();
      const int32_t slot = atom->slot + begin - atom->pos;
      spans.push_back({pages.k(layer, head, slot), pages.v(layer, head, slot), rotation ? rotation->data() : nullptr,
                       begin, end - begin});
    }
  };
  const int32_t low = mask.reach < 0 ? 0 : std::max(0, rows.begin - mask.reach);
  if (mask.window < 0 || rows.end - 1 >= mask.dense_from) return append({low, rows.end});
  const int32_t near = std::max(low, rows.begin - mask.window);
  append({low, std::min(mask.sink, near)});
  append({near, rows.end});
}

Runs PageTable::known(int layer) const {
  Runs placed;
  for (const Placement& placement : placements_) placed.push_back({placement.pos, placement.pos + placement.count});
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
  std::vector<Placement> kept, copied;
  std::vector<Rotations> rotations;
  Runs runs;
  for (size_t i = 0; i < placements_.size(); ++i) {
    if (!rotations_[i]) {
      kept.push_back(placements_[i]);
      continue;
    }
    copied.push_back(placements_[i]);
    rotations.push_back(rotations_[i]);
    runs.push_back({placements_[i].pos, placements_[i].pos + placements_[i].count});
  }
  const std::vector<Runs> sets{normalize(runs)};
  hand_out(sets, std::vector<uint16_t>(map_of_.size(), 0));
  grow_whole();
  for (const Run& run : runs) hold({0, shape.L}, run);
  for (int layer = 0; layer < shape.L; ++layer) {
    const SlotMap& own = slot_map(layer);
    for (size_t i = 0; i < copied.size(); ++i) {
      const Placement& placed = copied[i];
      const SlotMap& map = placed.segment->maps[placed.segment->map_of[layer]];
      const int32_t first = placed.segment->pos + placed.offset;
      std::vector<Atom> parts;
      for (const SlotRun& part : map.within({first, first + placed.count}))
        split_pages(parts, {part.pos, part.count, part.slot, 0});
      for (const Atom& part : parts) {
        for (int32_t done = 0; done < part.count;) {
          const int32_t slot = own.slot_of(part.pos + placed.shift() + done);
          const int32_t here = std::min(part.count - done, shape.P - slot % shape.P);
          for (int head = 0; head < shape.G; ++head) {
            backend.realign(attend, placed.segment->pages->k(layer, head, part.slot + done),
                            rotations[i].kind[ropes_.kind(layer)]->data(), here, pages_->k(layer, head, slot));
            std::memcpy(pages_->v(layer, head, slot), placed.segment->pages->v(layer, head, part.slot + done),
                        here * shape.row_bytes());
          }
          done += here;
        }
      }
    }
  }
  placements_ = std::move(kept);
  rotations_.assign(placements_.size(), {});
  atoms_.clear();
}

bool PageTable::owns(Run positions) const {
  return std::ranges::all_of(maps_, [&](const SlotMap& map) {
    int32_t own = 0;
    for (const SlotRun& run : map.within(positions)) own += run.count;
    return own == positions.size();
  });
}

std::shared_ptr<KvSegment> PageTable::publish(SegmentId id, Run run, std::vector<int32_t> tokens, bool exact) const {
  CHECK(static_cast<int32_t>(tokens.size()) == run.size() && whole());
  auto out = std::make_shared<KvSegment>();
  out->id = id;
  out->tokens = std::move(tokens);
  out->pos = run.begin;
  out->exact = exact;
  out->pages = pages_;
  for (const SlotMap& map : maps_) {
    SlotMap part;
    part.runs = map.within(run);
    part.slots = map.slots;
    CHECK(count(part.positions()) == run.size());
    out->maps.push_back(std::move(part));
  }
  out->map_of = map_of_;
  return out;
}

}  // namespace kvilt
