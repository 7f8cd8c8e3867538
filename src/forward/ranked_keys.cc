#include "forward/ranked_keys.h"

#include "base/check.h"

namespace kvilt {

void RankedKeys::append(const PageTable& kv, int layer, int head, std::span<const Run> positions) {
  const int64_t row_bytes = kv.shape().row_bytes();
  const size_t first = spans_.size();
  kv.resolve(layer, head, positions, spans_);
  size_t last = first;  // those that follow the one before in memory join it
  const auto follows = [&](const void* a, int32_t count, const void* b) {
    return static_cast<const char*>(a) + count * row_bytes == b;
  };
  auto run = positions.begin();
  int32_t keys = 0;  // of the run
  for (size_t i = first; i < spans_.size(); ++i) {
    const KvSpan span = spans_[i];
    while (run != positions.end() && keys == run->size()) ++run, keys = 0;
    CHECK(run != positions.end() && span.pos == run->begin + keys);
    keys += span.count;
    KvSpan* before = last > 0 ? &spans_[last - 1] : nullptr;
    if (before && before->rotation == span.rotation && follows(before->k, before->count, span.k) &&
        follows(before->v, before->count, span.v)) {
      before->count += span.count;
    } else {
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

}  // namespace kvilt
