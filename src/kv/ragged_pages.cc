// kv/ragged_pages.cc: the part of PageTable that knows what each head keeps (docs/design/kv.md#ragged-heads).
// Source:     SegPagedAttention in RedKnot (docs/papers.md#redknot).
// Idea:       a layer hands out slots, a head holds pages of them. A head that keeps all holds every page from add()
//             on. A local head holds the pages that the chunk writes and those that rows still to come may see: it
//             needs sink + window + chunk while the prompt runs and sink + window afterwards, however long the prompt.
// Invariants: a page is dropped when all its slots are handed out and every position in it is past the sink and more
//             than a window before the next row; so no row to come would have seen what is dropped.
// Cost:       a decode step compares one number per local head; every P steps it looks through the window's pages.
#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "kv/page_table.h"

namespace kvilt {

Status PageTable::can_keep(std::span<const HeadKeep> heads) const {
  for (const LocalHead& head : local_) {
    const HeadKeep now = heads.empty() ? HeadKeep{} : heads[head.layer * store_.shape().G + head.head];
    const bool less = !now.all() && now.sink <= head.keep.sink && now.window <= head.keep.window;
    const bool has_all = pages_->held(head.layer, head.head) == pages_->pages_of(slot_map(head.layer).slots);
    if (less || has_all) continue;
    return error(Code::kInternal, "layer {}, KV head {} keeps sink {} and window {}; what it dropped is gone",
                 head.layer, head.head, head.keep.sink, head.keep.window);
  }
  return {};
}

void PageTable::keep(std::vector<HeadKeep> heads, int32_t chunk) {
  const KvShape& shape = store_.shape();
  CHECK(heads.empty() || heads.size() == static_cast<size_t>(shape.L * shape.G));
  if (std::ranges::all_of(heads, &HeadKeep::all)) heads.clear();
  chunk_ = chunk;
  if (heads != keeps_) {
    CHECK(can_keep(heads).ok());
    keeps_ = std::move(heads);
    local_.clear();
    for (int i = 0; i < static_cast<int>(keeps_.size()); ++i) {
      const HeadKeep& keep = keeps_[i];
      if (!keep.all()) local_.push_back({i / shape.G, i % shape.G, keep, 0, 0});
    }
    find_ranges();
  }
  if (chunk == 0) pages_->reserve(0);
  for (LocalHead& head : local_) drop_passed(head);
}

void PageTable::passed(LayerRange layers, int32_t next) {
  const KvShape& shape = store_.shape();
  const auto done_with = [&](int layer) {  // by the last layer that reads its KV
    const int last = shape.last_reader(layer);
    return last >= layers.begin && last < layers.end;
  };
  for (int layer = 0; layer < shape.L; ++layer) {
    if (done_with(layer)) passed_[layer] = next;
  }
  for (LocalHead& head : local_) {
    if (done_with(head.layer)) drop_passed(head);
  }
}

void PageTable::drop_passed(LocalHead& head) {
  const int64_t next_row = passed_[head.layer];
  if (next_row < head.next_drop) return;
  const SlotMap& map = slot_map(head.layer);
  const std::vector<PageRange>& ranges = ranges_[map_of_[head.layer]];
  const int32_t full = map.slots / store_.shape().P;  // pages that get no more positions
  int64_t next_drop = INT64_MAX;
  bool leading = true;
  for (int32_t page = head.first; page < static_cast<int32_t>(ranges.size()); ++page) {
    const PageRange& range = ranges[page];
    const bool sink = range.low < head.keep.sink;
    const int64_t last_seen_by = int64_t{range.high} + head.keep.window;
    if (!sink && page < full && last_seen_by < next_row) {
      if (pages_->held(head.layer, head.head, page)) {
        pages_->drop(head.layer, head.head, page);
        ++dropped_;
      }
    } else if (!sink || page >= full) {
      leading = false;
      next_drop = std::min(next_drop, std::max(last_seen_by, next_row) + 1);
    }
    if (leading) head.first = page + 1;
  }
  head.next_drop = next_drop == INT64_MAX ? next_row : next_drop;
}

// Finds the lowest and the highest position in each page of slots.
void PageTable::find_ranges() {
  ranges_.clear();
  if (local_.empty()) return;
  const int32_t P = store_.shape().P;
  for (const SlotMap& map : maps_) {
    std::vector<PageRange>& ranges = ranges_.emplace_back(pages_->pages_of(map.slots));
    for (SlotRun run : map.runs) {
      while (run.count > 0) {
        const int32_t here = std::min(run.count, P - run.slot % P);
        PageRange& range = ranges[run.slot / P];
        range.low = std::min(range.low, run.pos);
        range.high = std::max(range.high, run.pos + here - 1);
        run = {run.pos + here, run.count - here, run.slot + here};
      }
    }
  }
  for (LocalHead& head : local_) head.first = 0, head.next_drop = 0;
}

int64_t PageTable::pages_of_whole(const SlotCounts& slots) const {
  const KvShape& shape = store_.shape();
  int64_t pages = 0;
  for (int layer = 0; layer < shape.L; ++layer) {
    const int64_t want = pages_->pages_of(slots[layer]);
    for (int head = 0; head < shape.G; ++head) {
      if (!is_local(layer, head)) pages += std::max<int64_t>(0, want - pages_->held(layer, head));
    }
  }
  return pages;
}

// Pages that local heads need beyond those they hold: for sink, window and a chunk, which may begin inside a page.
int64_t PageTable::peak_of_local(const SlotCounts& slots) const {
  const int64_t P = store_.shape().P;
  const auto pages_in = [P](int64_t positions) { return positions <= 0 ? 0 : (positions + P - 2) / P + 1; };
  int64_t pages = 0;
  for (const LocalHead& head : local_) {
    if (slots[head.layer] == slot_map(head.layer).slots) continue;  // nothing new to write
    const int64_t most =
        std::min<int64_t>(pages_->pages_of(slots[head.layer]),
                          pages_in(head.keep.sink) + pages_in(int64_t{head.keep.window} + std::max(chunk_, 1)));
    pages += std::max<int64_t>(0, most - pages_->held(head.layer, head.head));
  }
  return pages;
}

void PageTable::grow_whole() {
  const KvShape& shape = store_.shape();
  for (int layer = 0; layer < shape.L; ++layer) {
    const int32_t slots = slot_map(layer).slots;
    for (int head = 0; head < shape.G; ++head) {
      if (!is_local(layer, head)) pages_->grow(layer, head, slots);
    }
  }
}

// The numbers of the pages whose slots hold positions of `rows`, each once.
std::vector<int32_t> PageTable::page_numbers(int layer, const Runs& rows) const {
  std::vector<int32_t> pages;
  const int32_t P = store_.shape().P;
  for (const Run& part : rows) {
    for (const SlotRun& run : slot_map(layer).within(part)) {
      for (int32_t page = run.slot / P; page <= (run.slot + run.count - 1) / P; ++page) pages.push_back(page);
    }
  }
  std::ranges::sort(pages);
  pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
  return pages;
}

int64_t PageTable::pages_for_rows(LayerRange layers, Run rows) const {
  int64_t missing = 0;
  int layer = -1;
  std::vector<int32_t> pages;
  for (const LocalHead& head : local_) {
    if (head.layer < layers.begin || head.layer >= layers.end) continue;
    if (head.layer != layer) pages = page_numbers(layer = head.layer, {rows});
    for (const int32_t page : pages) missing += pages_->held(head.layer, head.head, page) ? 0 : 1;
  }
  return std::max<int64_t>(0, missing - pages_->spare());
}

void PageTable::hold(LayerRange layers, Run rows) {
  int layer = -1;
  std::vector<int32_t> pages;
  for (LocalHead& head : local_) {
    if (head.layer < layers.begin || head.layer >= layers.end) continue;
    if (head.layer != layer) pages = page_numbers(layer = head.layer, {rows});
    for (const int32_t page : pages) {
      if (!pages_->held(head.layer, head.head, page)) pages_->hold(head.layer, head.head, page);
    }
    head.first = 0;  // these pages may come before those that it has dropped
    head.next_drop = 0;
  }
}

std::vector<int32_t> PageTable::kept_pages(const LocalHead& head, int32_t next) const {
  return page_numbers(head.layer,
                      normalize({{0, std::min(head.keep.sink, next)}, {std::max(0, next - head.keep.window), next}}));
}

int64_t PageTable::pages_for_kept(int32_t next) const {
  int64_t missing = 0;
  for (const LocalHead& head : local_) {
    for (const int32_t page : kept_pages(head, next)) missing += pages_->held(head.layer, head.head, page) ? 0 : 1;
  }
  return std::max<int64_t>(0, missing - pages_->spare());
}

void PageTable::hold_kept(int32_t next) {
  for (const LocalHead& head : local_) {
    for (const int32_t page : kept_pages(head, next)) {
      if (!pages_->held(head.layer, head.head, page)) pages_->hold(head.layer, head.head, page);
    }
  }
}

// A decode step at `pos`, whose slot was just handed out at all layers: drops the pages that no row from pos on sees,
// then holds the page of pos. Allocates nothing but pages.
void PageTable::slide(int32_t pos) {
  const int32_t P = store_.shape().P;
  for (size_t i = 0; i < maps_.size(); ++i) {
    const auto page = static_cast<size_t>(maps_[i].slot_of(pos) / P);
    if (page >= ranges_[i].size()) ranges_[i].resize(page + 1);
    PageRange& range = ranges_[i][page];
    range.low = std::min(range.low, pos);
    range.high = std::max(range.high, pos);
  }
  passed({0, store_.shape().layers()}, pos);
  for (const LocalHead& head : local_) {
    const int32_t page = slot_map(head.layer).slot_of(pos) / P;
    if (!pages_->held(head.layer, head.head, page)) pages_->hold(head.layer, head.head, page);
  }
}

}  // namespace kvilt
