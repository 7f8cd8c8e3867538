#include "forward/ranked_keys.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"

namespace kvilt {
namespace {

// Whether `next` lies behind `before` in memory; then `before` has its keys too.
bool joined(KvSpan& before, const KvSpan& next, int64_t row_bytes) {
  const auto follows = [&](const void* a, const void* b) {
    return static_cast<const std::byte*>(a) + before.count * row_bytes == b;
  };
  if (before.rotation != next.rotation || !follows(before.k, next.k) || !follows(before.v, next.v)) return false;
  before.count += next.count;
  return true;
}

}  // namespace

void RankedKeys::append(const PageTable& kv, int layer, int head, std::span<const Run> positions) {
  const int64_t row_bytes = kv.shape().row_bytes();
  const size_t first = spans_.size();
  kv.resolve(layer, head, positions, spans_);
  size_t last = first;  // those that follow the one before in memory join it
  auto run = positions.begin();
  int32_t keys = 0;  // of the run
  for (size_t i = first; i < spans_.size(); ++i) {
    const KvSpan span = spans_[i];
    while (run != positions.end() && keys == run->size()) ++run, keys = 0;
    CHECK(run != positions.end() && span.pos == run->begin + keys);
    keys += span.count;
    if (last == 0 || !joined(spans_[last - 1], span, row_bytes)) {
      spans_[last] = span;
      spans_[last++].pos = size_;
    }
    size_ += span.count;
  }
  while (run != positions.end() && keys == run->size()) ++run, keys = 0;
  CHECK(run == positions.end());
  spans_.resize(last);
  for (const Run& of : positions) {
    if (!positions_.empty() && positions_.back().end == of.begin) {
      positions_.back().end = of.end;
    } else {
      positions_.push_back(of);
    }
  }
}

void RankedKeys::replace(const PageTable& kv, int layer, int head, std::span<const Run> positions) {
  const int64_t row_bytes = kv.shape().row_bytes();
  Runs now(positions.begin(), positions.end());
  std::vector<KvSpan> asked, spans;
  kv.resolve(layer, head, subtract(positions, positions_), asked);
  spans.reserve(spans_.size() + asked.size());
  int32_t size = 0, first = 0;  // first: the rank of the run's first key
  auto run = positions_.begin();
  auto span = spans_.begin();
  auto next = asked.begin();
  for (const Run& part : positions) {
    for (int32_t pos = part.begin; pos < part.end;) {
      KvSpan here;
      if (next != asked.end() && next->pos == pos) {
        here = *next++;
      } else {
        while (run != positions_.end() && run->end <= pos) first += run++->size();
        CHECK(run != positions_.end() && run->begin <= pos);
        const int32_t rank = first + pos - run->begin, end = rank + std::min(part.end, run->end) - pos;
        while (span->pos + span->count <= rank) ++span;
        const int64_t skipped = (rank - span->pos) * row_bytes;
        here = {static_cast<const std::byte*>(span->k) + skipped, static_cast<const std::byte*>(span->v) + skipped,
                span->rotation, 0, std::min(end, span->pos + span->count) - rank};
      }
      here.pos = size;
      size += here.count;
      pos += here.count;
      if (spans.empty() || !joined(spans.back(), here, row_bytes)) spans.push_back(here);
    }
  }
  CHECK(next == asked.end());
  spans_ = std::move(spans);
  positions_ = std::move(now);
  size_ = size;
}

}  // namespace kvilt
