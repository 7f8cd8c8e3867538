#include "kv/annex.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kv/page_table.h"

namespace kvilt {

Annex::Annex(PageStore& store, AnnexKind kind, Run positions, std::span<const std::byte> bytes)
    : store_(store), kind_(kind), positions_(positions), bytes_(static_cast<int64_t>(bytes.size())) {
  CHECK(positions.size() > 0 && !bytes.empty() && (!by_token(kind.of) || bytes_ % positions.size() == 0));
  const auto page = static_cast<size_t>(store.shape().page_bytes());
  pages_.reserve(static_cast<size_t>(pages_for(store, bytes_)));
  try {
    for (size_t done = 0; done < bytes.size(); done += page) {
      pages_.push_back(store.alloc());
      std::memcpy(store.k(pages_.back()), bytes.data() + done, std::min(page, bytes.size() - done));
    }
  } catch (...) {
    give_back();
    throw;
  }
}

Annex::~Annex() { give_back(); }

void Annex::give_back() {
  for (const PageId page : pages_) store_.free(page);
}

void Annex::read(int64_t offset, std::span<std::byte> out) const {
  CHECK(offset >= 0 && offset + std::ssize(out) <= bytes_);
  const int64_t page = store_.shape().page_bytes();
  for (int64_t done = 0; done < std::ssize(out);) {
    const int64_t at = (offset + done) % page, here = std::min(std::ssize(out) - done, page - at);
    std::memcpy(out.data() + done, store_.k(pages_[(offset + done) / page]) + at, static_cast<size_t>(here));
    done += here;
  }
}

void Annex::row(int32_t pos, std::span<std::byte> out) const {
  const int64_t size = bytes_ / positions_.size();
  CHECK(by_token(kind_.of) && contains(Runs{positions_}, pos) && std::ssize(out) == size);
  read((pos - positions_.begin) * size, out);
}

namespace {

// fn(extent, run) for the longest runs of `positions` that have their slots at `layer` in one extent.
template <class Fn>
void by_extent(const KvSegment& segment, int layer, Run positions, Fn fn) {
  Run run{positions.begin, positions.begin};
  Extent* in = nullptr;
  for (int32_t pos = positions.begin; pos <= positions.end; ++pos) {
    Extent* here = pos < positions.end ? segment.extent_of(layer, pos) : nullptr;
    if (here != in || pos == positions.end) {
      if (in && run.size() > 0) fn(*in, run);
      run.begin = pos;
      in = here;
    }
    run.end = pos + 1;
  }
}

Run overlap(Run a, Run b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

// fn(annex, its positions that are placed, as the segment has them) for each annex of the kind.
template <class Fn>
void each_annex(const Placement& placed, AnnexKind kind, Fn fn) {
  const int32_t by = placed.shift();
  by_extent(*placed.segment, kind.layer, {placed.pos - by, placed.pos - by + placed.count}, [&](Extent& in, Run run) {
    for (const auto& annex : in.annexes()) {
      const Run here = overlap(annex->positions(), run);
      if (annex->kind() == kind && here.size() > 0) fn(*annex, here);
    }
  });
}

}  // namespace

int64_t KvSegment::pages_to_attach(AnnexKind kind, Run positions, int64_t bytes) const {
  // Each run in an extent, and each gap that an earlier annex leaves, fills its last page only in part.
  int64_t pages = Annex::pages_for(store_, bytes);
  if (!by_token(kind.of)) return pages;
  by_extent(*this, kind.layer, positions, [&](Extent& in, Run) { pages += 2 + std::ssize(in.annexes()); });
  return pages;
}

void KvSegment::attach(AnnexKind kind, Run positions, std::span<const std::byte> bytes) const {
  CHECK(positions.size() > 0 && positions.begin >= positions_.begin && positions.end <= positions_.end);
  const auto missing = [&](const Extent& in, Run run) {
    Runs there;
    for (const auto& annex : in.annexes()) {
      const bool same = by_token(kind.of) || annex->positions() == run;
      if (annex->kind() == kind && same) there.push_back(annex->positions());
    }
    return subtract(Runs{run}, normalize(std::move(there)));
  };
  if (!by_token(kind.of)) {
    Extent* in = extent_of(kind.layer, positions.end - 1);
    if (in && !missing(*in, positions).empty()) in->attach(kind, positions, bytes);
    return;
  }
  const size_t row = bytes.size() / static_cast<size_t>(positions.size());
  by_extent(*this, kind.layer, positions, [&](Extent& in, Run run) {
    for (const Run& left : missing(in, run)) {
      const auto first = static_cast<size_t>(left.begin - positions.begin) * row;
      in.attach(kind, left, bytes.subspan(first, static_cast<size_t>(left.size()) * row));
    }
  });
}

Runs annexed(std::span<const Placement> placements, AnnexKind kind) {
  Runs out;
  for (const Placement& placed : placements) {
    each_annex(placed, kind, [&](const Annex&, Run run) {
      out.push_back({run.begin + placed.shift(), run.end + placed.shift()});
    });
  }
  return normalize(std::move(out));
}

namespace {

// The annex that holds the row of `pos`, and where `pos` is in it. Null: none.
std::pair<const Annex*, int32_t> annex_of(std::span<const Placement> placements, AnnexKind kind, int32_t pos) {
  const auto after = std::ranges::upper_bound(placements, pos, {}, &Placement::pos);
  if (after == placements.begin()) return {};
  const Placement& placed = *std::prev(after);
  if (pos >= placed.pos + placed.count) return {};
  const int32_t there = pos - placed.shift();
  const Extent* in = placed.segment->extent_of(kind.layer, there);
  if (!in) return {};
  for (const auto& annex : in->annexes()) {
    const Run has = annex->positions();
    if (annex->kind() == kind && has.begin <= there && there < has.end) return {annex.get(), there};
  }
  return {};
}

}  // namespace

bool has_annex_row(std::span<const Placement> placements, AnnexKind kind, int32_t pos) {
  return annex_of(placements, kind, pos).first != nullptr;
}

void annex_row(std::span<const Placement> placements, AnnexKind kind, int32_t pos, std::span<std::byte> out) {
  const auto [annex, there] = annex_of(placements, kind, pos);
  CHECK(annex);
  annex->row(there, out);
}

std::vector<PlacedAnnex> annex_blocks(std::span<const Placement> placements, AnnexKind kind) {
  CHECK(!by_token(kind.of));
  std::vector<PlacedAnnex> out;
  for (const Placement& placed : placements) {
    const int32_t by = placed.shift();
    const Run held{placed.pos - by, placed.pos - by + placed.count};
    each_annex(placed, kind, [&](const Annex& annex, Run) {
      const Run all = annex.positions();
      if (overlap(all, held) != all) return;
      // A run in several extents meets its block in the last one only: that one holds it.
      out.push_back({{all.begin + by, all.end + by}, &annex});
    });
  }
  return out;
}

std::vector<const Annex*> blocks_within(const KvSegment& segment, Run positions) {
  std::vector<const Annex*> out;
  for (const ExtentKeep& extent : segment.extents_of(positions).list) {
    if (!extent) continue;
    for (const auto& annex : extent->annexes()) {
      const Run all = annex->positions();
      if (!by_token(annex->kind().of) && overlap(all, positions) == all) out.push_back(annex.get());
    }
  }
  return out;
}

}  // namespace kvilt
