#include "kernels/x86/key_blocks.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/kv_row.h"

namespace kvilt::x86 {
namespace {

alignas(64) constexpr float kZeros[kMaxHead] = {};

// Bits [first, last), 0 <= first <= last <= 64.
uint64_t bits(int64_t first, int64_t last) {
  const uint64_t below = last >= 64 ? ~uint64_t{0} : (uint64_t{1} << last) - 1;
  return first >= 64 ? 0 : below & (~uint64_t{0} << first);
}

Element element_of(DType kv) {
  if (kv == DType::kF32) return Element::kF32;
  if (kv == DType::kF16) return Element::kF16;
  return kv == DType::kBF16 ? Element::kBF16 : Element::kI8;
}

}  // namespace

TileShape tile_shape(const AttendShape& shape) {
  CHECK(is_kv_type(shape.kv));
  CHECK(shape.group >= 1 && shape.E >= 1 && shape.E <= kMaxHead);
  CHECK(shape.rotary_dim % 2 == 0 && shape.rotary_dim >= 0 && shape.rotary_dim <= shape.E);
  TileShape tile;
  tile.group = shape.group;
  tile.E = shape.E;
  tile.width = (shape.E + kLanes - 1) / kLanes * kLanes;
  tile.rotary = shape.rotary_dim;
  tile.interleaved = shape.pairs == RopePairs::kInterleaved;
  tile.scale = static_cast<float>(shape.scale * 1.44269504088896340736);
  tile.kv = element_of(shape.kv);
  tile.row_bytes = static_cast<int32_t>(kv_row_bytes(shape.kv, shape.E));
  return tile;
}

void KeyBlocks::seek(int64_t pos) {
  const auto ends_by = [pos](const KvSpan& span) { return int64_t{span.pos} + span.count <= pos; };
  if (!started_) {
    next_ = static_cast<size_t>(std::ranges::partition_point(spans_, ends_by) - spans_.begin());
    started_ = true;
  }
  while (next_ < spans_.size() && ends_by(spans_[next_])) ++next_;
}

void KeyBlocks::locate(int64_t block, KeyBlock& out) {
  const int64_t base = block * kBlock, end = base + kBlock;
  const int64_t row_bytes = shape_.row_bytes;
  seek(base);
  out.present = 0;
  out.rotation_count = 0;
  for (size_t n = next_; n < spans_.size() && spans_[n].pos < end; ++n) {
    const KvSpan& span = spans_[n];
    const int64_t first = std::max<int64_t>(span.pos, base) - base;
    const int64_t last = std::min<int64_t>(int64_t{span.pos} + span.count, end) - base;
    if (first >= last) continue;
    const int64_t skipped = (base + first - span.pos) * row_bytes;
    const char* k = static_cast<const char*>(span.k) + skipped;
    const char* v = static_cast<const char*>(span.v) + skipped;
    for (int64_t j = first; j < last; ++j, k += row_bytes, v += row_bytes) {
      out.k[j] = k;
      out.v[j] = v;
      out.run_end[j] = static_cast<int8_t>(last);
    }
    const uint64_t columns = bits(first, last);
    DCHECK((out.present & columns) == 0);
    out.present |= columns;
    int t = 0;
    while (t < out.rotation_count && out.rotations[t].rotation != span.rotation) ++t;
    if (t == out.rotation_count) out.rotations[out.rotation_count++] = {span.rotation, 0, 0};
    out.rotations[t].columns |= columns;
  }
  for (uint64_t absent = ~out.present; absent != 0; absent &= absent - 1) {
    const int j = __builtin_ctzll(absent);
    out.k[j] = out.v[j] = kZeros;
  }
  arrange(out);
}

// Gives every key its place in the key tile.
void KeyBlocks::arrange(KeyBlock& out) const {
  out.permuted = false;
  for (int t = 0; t < out.rotation_count; ++t) {  // in the order of their first columns
    out.rotations[t].places = out.rotations[t].columns;
    if (t > 0) out.permuted |= (out.rotations[t - 1].columns >> __builtin_ctzll(out.rotations[t].columns)) != 0;
  }
  if (!out.permuted) return;
  const void* k[kBlock];
  std::copy_n(out.k, kBlock, k);
  int next = 0;
  const auto put = [&](uint64_t columns) {
    const int first = next;
    for (; columns != 0; columns &= columns - 1) {
      const int j = __builtin_ctzll(columns);
      out.place[j] = next;
      out.k[next++] = k[j];
    }
    return bits(first, next);
  };
  for (int t = 0; t < out.rotation_count; ++t) out.rotations[t].places = put(out.rotations[t].columns);
  put(~out.present);
}

uint64_t visible_columns(const KeyMask& mask, int64_t i, int64_t block) {
  const int64_t base = block * kBlock;
  const auto column = [base](int64_t pos) { return std::clamp<int64_t>(pos - base, 0, kBlock); };
  const uint64_t causal = bits(mask.reach < 0 ? 0 : column(i - mask.reach), column(i + 1));
  if (mask.window < 0 || i >= mask.dense_from) return causal;
  return causal & (bits(column(i - mask.window), kBlock) | bits(0, column(mask.sink)));
}

BlockRange seen_blocks(std::span<const KvSpan> spans, int64_t high) {
  if (spans.empty()) return {};
  const int64_t end = std::min<int64_t>(int64_t{spans.back().pos} + spans.back().count, high + 1);
  return {spans.front().pos / kBlock, end <= 0 ? 0 : (end + kBlock - 1) / kBlock};
}

int64_t next_seen(const KeyMask& mask, int64_t low, int64_t high, int64_t block) {
  if (mask.reach >= 0) block = std::max(block, std::max<int64_t>(low - mask.reach, 0) / kBlock);
  if (mask.window < 0 || high >= mask.dense_from || block * kBlock < mask.sink) return block;
  return std::max(block, std::max<int64_t>(low - mask.window, 0) / kBlock);
}

}  // namespace kvilt::x86
