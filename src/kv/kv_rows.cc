#include "kv/kv_rows.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace kvilt {
namespace {

// Where the rows of one position begin among those of `count` positions.
struct Offsets {
  size_t row, count;
  int G;
  size_t key(int layer, int head, int32_t i) const {
    return ((static_cast<size_t>(layer) * G + head) * 2 * count + static_cast<size_t>(i)) * row;
  }
  size_t value(int layer, int head, int32_t i) const { return key(layer, head, i) + count * row; }
};

Offsets offsets_of(const KvShape& shape, Run positions) {
  return {static_cast<size_t>(shape.row_bytes()), static_cast<size_t>(positions.size()), shape.G};
}

}  // namespace

void copy_rows_out(const PageStore& store, const KvSegment& kv, Run positions, std::span<std::byte> out) {
  const KvShape& shape = store.shape();
  const Offsets at = offsets_of(shape, positions);
  CHECK(std::ssize(out) == positions.size() * shape.token_bytes());
  const KvSegment::Extents extents = kv.extents_of(positions);
  const int per_extent = store.extent_pages();
  for (int layer = 0; layer < shape.L; ++layer) {
    int32_t copied = 0;
    for (const SlotRun& run : kv.map(layer).within(positions)) {
      for (int32_t done = 0; done < run.count;) {  // as far as a page goes
        const int32_t slot = run.slot + done, page = slot / shape.P, in_page = slot % shape.P;
        const int32_t n = std::min(run.count - done, shape.P - in_page);
        const Extent& extent = *extents.list[page / per_extent - extents.first].get();
        const int32_t i = run.pos + done - positions.begin;
        for (int head = 0; head < shape.G; ++head) {
          const int list = layer * shape.G + head;
          CHECK(extent.held(list, page % per_extent));
          const PageId id = extent.at(list, page % per_extent);
          const size_t bytes = static_cast<size_t>(n) * at.row, skip = static_cast<size_t>(in_page) * at.row;
          std::memcpy(out.data() + at.key(layer, head, i), store.k(id) + skip, bytes);
          std::memcpy(out.data() + at.value(layer, head, i), store.v(id) + skip, bytes);
        }
        done += n;
        copied += n;
      }
    }
    CHECK(copied == positions.size());
  }
}

int64_t pages_for_rows(const PageStore& store, Run positions) {
  const KvShape& shape = store.shape();
  return int64_t{shape.L} * shape.G * ((positions.size() + shape.P - 1) / shape.P);
}

std::unique_ptr<PageTable> table_for_rows(PageStore& store, const LayerRopes& ropes, Run positions) {
  auto table = std::make_unique<PageTable>(store, ropes);
  table->add(std::vector<Runs>{{positions}}, std::vector<uint16_t>(store.shape().L, 0));
  return table;
}

void copy_rows_in(PageTable& table, Run positions, std::span<const std::byte> bytes, Run wanted) {
  const KvShape& shape = table.shape();
  const Offsets at = offsets_of(shape, positions);
  CHECK(std::ssize(bytes) == positions.size() * shape.token_bytes());
  CHECK(wanted.begin >= positions.begin && wanted.end <= positions.end);
  for (int layer = 0; layer < shape.L; ++layer) {
    for (int head = 0; head < shape.G; ++head) {
      for (int32_t pos = wanted.begin; pos < wanted.end; ++pos) {
        const int32_t i = pos - positions.begin;
        table.restore(layer, head, pos, bytes.data() + at.key(layer, head, i), bytes.data() + at.value(layer, head, i));
      }
    }
  }
}

RowPlaces::RowPlaces(const PageStore& store, const KvSegment& kv)
    : G_(store.shape().G),
      P_(store.shape().P),
      row_(static_cast<size_t>(store.shape().row_bytes())),
      begin_(kv.pos()),
      pages_of_head_(static_cast<size_t>((kv.count() + P_ - 1) / P_)) {
  const SlotRun all{kv.pos(), kv.count(), 0};
  const KvSegment::Extents extents = kv.extents_of(kv.positions());
  const int per_extent = store.extent_pages();
  pages_.reserve(static_cast<size_t>(store.shape().L) * G_ * pages_of_head_);
  for (int layer = 0; layer < store.shape().L; ++layer) {
    CHECK(kv.map(layer).runs == std::vector<SlotRun>{all});
    for (int head = 0; head < G_; ++head) {
      for (int page = 0; page < static_cast<int>(pages_of_head_); ++page) {
        const Extent& extent = *extents.list[static_cast<size_t>(page / per_extent - extents.first)].get();
        pages_.push_back(store.k(extent.at(layer * G_ + head, page % per_extent)));
      }
    }
  }
}

void RowPlaces::copy_in(int layer, Run positions, std::span<const std::byte> bytes, Run wanted) const {
  const auto count = static_cast<size_t>(positions.size());
  CHECK(bytes.size() == 2 * count * row_ * static_cast<size_t>(G_));
  CHECK(wanted.begin >= std::max(positions.begin, begin_) && wanted.end <= positions.end);
  for (int head = 0; head < G_; ++head) {
    std::byte* const* const pages = pages_.data() + (static_cast<size_t>(layer) * G_ + head) * pages_of_head_;
    const std::byte* const keys = bytes.data() + static_cast<size_t>(head) * 2 * count * row_;
    for (int32_t pos = wanted.begin; pos < wanted.end;) {  // as far as a page goes
      const int32_t slot = pos - begin_, in_page = slot % P_, n = std::min(wanted.end - pos, P_ - in_page);
      std::byte* const to = pages[slot / P_] + static_cast<size_t>(in_page) * row_;
      const std::byte* const from = keys + static_cast<size_t>(pos - positions.begin) * row_;
      std::memcpy(to, from, static_cast<size_t>(n) * row_);
      std::memcpy(to + static_cast<size_t>(P_) * row_, from + count * row_, static_cast<size_t>(n) * row_);
      pos += n;
    }
  }
}

}  // namespace kvilt
