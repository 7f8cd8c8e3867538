#include "forward/ranked_keys.h"

#include "base/check.h"

namespace kvilt {

void RankedKeys::append(const PageTable& kv, int layer, int head, Run positions) {
  const int64_t row_bytes = kv.shape().row_bytes();
  const size_t first = spans_.size();
  kv.resolve(layer, head, positions, {.window = 0}, spans_);
  size_t last = first;  // those that follow the one before in memory join it
  const auto follows = [&](const void* a, int32_t count, const void* b) {
    return static_cast<const char*>(a) + count * row_bytes == b;
  };
  int32_t keys = 0;
  for (size_t i = first; i < spans_.size(); ++i) {
    const KvSpan span = spans_[i];
    CHECK(span.pos == positions.begin + keys);
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
  spans_.resize(last);
  if (!positions_.empty() && positions_.back().end == positions.begin) {
    positions_.back().end = positions.end;
  } else {
    positions_.push_back(positions);
  }
  CHECK(keys == positions.size());
}

}  // namespace kvilt
