#include "forward/pooled_keys.h"

#include <algorithm>

#include "tensor/kv_row.h"
#include "tensor/rope.h"

namespace kvilt {

PooledKeys::PooledKeys(const PageTable& kv, const Of& of) : kv_(kv), of_(of) {
  kv_.resolve(of_.layer, of_.head, {of_.end - 1, of_.end}, {}, spans_);
}

// The span's keys and values to their blocks' sums (2 E floats a block), but for columns.
void PooledKeys::add(const KvSpan& span, const Runs& columns, std::vector<float>& sums) {
  const KvShape& shape = kv_.shape();
  const LayerRopes ropes = kv_.ropes();
  const RopeConfig& rope = ropes.at(of_.layer);
  const int E = shape.E;
  std::vector<float> row(static_cast<size_t>(E));
  for (const Run& run : subtract(Runs{{span.pos, span.pos + span.count}}, columns)) {
    for (int32_t pos = run.begin; pos < run.end; ++pos) {
      const int64_t at = int64_t{pos - span.pos} * shape.row_bytes();
      float* sum = sums.data() + int64_t{pos / of_.pool} * 2 * E;
      for (const void* side : {span.k, span.v}) {
        decode_kv_row(shape.dtype, E, static_cast<const std::byte*>(side) + at, row.data());
        if (side == span.k && span.rotation) rotate_head(rope.pairs, rope.rotary_dim, span.rotation, 1.0f, row.data());
        for (int e = 0; e < E; ++e) sum[e] += row[e];
        sum += E;
      }
      ++count_[pos / of_.pool];
    }
  }
}

void PooledKeys::build(const Runs& columns) {
  const KvShape& shape = kv_.shape();
  const int E = shape.E;
  const auto blocks = static_cast<size_t>((of_.end + of_.pool - 1) / of_.pool);
  std::vector<float> sums(blocks * 2 * static_cast<size_t>(E));
  count_.assign(blocks, 0);
  for (const KvSpan& span : spans_) add(span, columns, sums);
  rows_.resize(2 * blocks * static_cast<size_t>(shape.row_bytes()));
  for (size_t b = 0; b < blocks; ++b) {
    float* sum = sums.data() + b * 2 * static_cast<size_t>(E);
    for (int e = 0; e < 2 * E; ++e) sum[e] /= static_cast<float>(std::max(1, count_[b]));
    const auto row_bytes = static_cast<size_t>(shape.row_bytes());
    encode_kv_row(shape.dtype, E, sum, rows_.data() + b * row_bytes);
    encode_kv_row(shape.dtype, E, sum + E, rows_.data() + (blocks + b) * row_bytes);
  }
}

PooledKeys::Part PooledKeys::skipped(const Runs& seen, int32_t end) const {
  Part out;
  const int64_t row_bytes = kv_.shape().row_bytes();
  const std::byte *keys = rows_.data(), *values = keys + std::ssize(count_) * row_bytes;
  auto run = seen.begin();
  for (int32_t b = 0; (b + 1) * of_.pool <= end; ++b) {
    const Run block{b * of_.pool, (b + 1) * of_.pool};
    while (run != seen.end() && run->end <= block.begin) ++run;
    int32_t in = 0;  // of the block's keys that rows see
    for (auto it = run; it != seen.end() && it->begin < block.end; ++it)
      in += std::min(it->end, block.end) - std::max(it->begin, block.begin);
    if (count_[b] == 0 || in != of_.pool - count_[b]) continue;
    if (!out.spans.empty() && out.spans.back().k == keys + (b - out.spans.back().count) * row_bytes) {
      ++out.spans.back().count;
    } else {
      out.spans.push_back({keys + b * row_bytes, values + b * row_bytes, nullptr, out.keys, 1});
    }
    ++out.keys;
    out.pooled += count_[b];
  }
  return out;
}

}  // namespace kvilt
