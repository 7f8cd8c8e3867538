// kv/stored_int8.cc: placed pieces read as if they were stored in 8 bits: the part of PageTable for it.
// Role:   what such storage costs in accuracy, exactly; not what it saves: the segment stays as it is, and the request
//         reads a private copy that has passed through the bytes.
// Idea:   a signed byte an element, and a scale for each channel of a (layer, KV head) over the placed tokens, of K as it
//         was rotated where it was computed, and of V: max abs / 127. K is realigned after that.
// Source: cross-query segment reuse (docs/papers.md#cross-query).
// Cost:   a copy of what is placed.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kv/page_table.h"
#include "tensor/kv_row.h"

namespace kvilt {
namespace {

// x: rows of E. Each element to the nearest of its channel's 255 values.
void round_channels(int E, std::vector<float>& x) {
  for (int e = 0; e < E; ++e) {
    float most = 0;
    for (size_t i = static_cast<size_t>(e); i < x.size(); i += static_cast<size_t>(E))
      most = std::max(most, std::abs(x[i]));
    const float scale = most / 127;
    if (scale == 0) continue;
    for (size_t i = static_cast<size_t>(e); i < x.size(); i += static_cast<size_t>(E))
      x[i] = scale * std::round(x[i] / scale);
  }
}

}  // namespace

Runs PageTable::placed_from(int32_t from) const {
  Runs out;
  for (const Placement& placed : placements_) {
    if (placed.pos >= from) out.push_back(placed.positions());
  }
  return normalize(std::move(out));
}

int64_t PageTable::int8_pages(int32_t from) const {
  return pages_for(std::vector<Runs>{placed_from(from)}, std::vector<uint16_t>(map_of_.size(), 0));
}

void PageTable::read_as_int8(int32_t from) {
  const Runs copied = placed_from(from);
  hand_out(std::vector<Runs>{copied}, std::vector<uint16_t>(map_of_.size(), 0));
  grow_whole();
  for (const Run& run : copied) hold({0, store_.shape().L}, run);
  for (size_t i = placements_.size(); i-- > 0 && placements_[i].pos >= from;) {
    for (int layer = 0; layer < store_.shape().L; ++layer) {
      for (int head = 0; head < store_.shape().G; ++head) copy_as_int8(i, layer, head);
    }
    placements_.pop_back();
    rotations_.pop_back();
  }
  atoms_.clear();
}

void PageTable::copy_as_int8(size_t i, int layer, int head) {
  const KvShape& shape = store_.shape();
  const Placement& placed = placements_[i];
  const auto E = static_cast<size_t>(shape.E);
  std::vector<float> k(static_cast<size_t>(placed.count) * E), v(k.size());
  for (int32_t t = 0; t < placed.count; ++t) {
    const int32_t slot = placed.segment->map(layer).slot_of(placed.pos + t - placed.shift());
    CHECK(slot >= 0);
    decode_kv_row(shape.dtype, shape.E, placed.pages.k(layer, head, slot), k.data() + static_cast<size_t>(t) * E);
    decode_kv_row(shape.dtype, shape.E, placed.pages.v(layer, head, slot), v.data() + static_cast<size_t>(t) * E);
  }
  round_channels(shape.E, k);
  round_channels(shape.E, v);
  const RopeConfig& rope = ropes_.at(layer);
  const Rotation& by = rotations_[i].kind[ropes_.kind(layer)];
  std::vector<std::byte> k_row(static_cast<size_t>(shape.row_bytes())), v_row(k_row.size());
  for (int32_t t = 0; t < placed.count; ++t) {
    float* key = k.data() + static_cast<size_t>(t) * E;
    if (by) rotate_head(rope.pairs, rope.rotary_dim, by->data(), 1, key);
    encode_kv_row(shape.dtype, shape.E, key, k_row.data());
    encode_kv_row(shape.dtype, shape.E, v.data() + static_cast<size_t>(t) * E, v_row.data());
    restore(layer, head, placed.pos + t, k_row.data(), v_row.data());
  }
}

}  // namespace kvilt
