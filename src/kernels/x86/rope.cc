// kernels/x86/rope.cc: RoPE when K and Q are made, and realignment of stored keys for the copying placement.
#include <algorithm>

#include "base/check.h"
#include "kernels/x86/attend.h"
#include "kernels/x86/attend_tile.h"
#include "kernels/x86/key_blocks.h"
#include "tensor/kv_row.h"

namespace kvilt::x86 {

constexpr int64_t kRowsPerItem = 16;

void rope(const AttendIsa& isa, Mat<float> x, int E, std::span<const int32_t> pos, const RopeConfig& config,
          ThreadPool& pool) {
  const int half = config.rotary_dim / 2;
  CHECK(config.rotary_dim % 2 == 0 && config.rotary_dim <= E && E <= kMaxHead);
  CHECK(static_cast<int>(config.inv_freq.size()) == half && static_cast<int64_t>(pos.size()) == x.rows &&
        x.cols % E == 0);
  TileShape shape;
  shape.E = E;
  shape.rotary = config.rotary_dim;
  shape.interleaved = config.pairs == RopePairs::kInterleaved;
  pool.parallel_for((x.rows + kRowsPerItem - 1) / kRowsPerItem, [&](int64_t item, int) {
    alignas(64) float rotation[kMaxHead];
    for (int64_t r = item * kRowsPerItem; r < std::min(x.rows, (item + 1) * kRowsPerItem); ++r) {
      isa.plain.angles(pos[r], config.inv_freq.data(), half, config.magnitude, rotation);
      isa.plain.rope_row(shape, x.row(r), x.cols / E, rotation);
    }
  });
}

void realign(const AttendIsa& isa, const AttendShape& shape, const void* src, const float* rotation, int64_t count,
             void* dst) {
  const TileShape tile = tile_shape(shape);
  alignas(64) float row[kMaxHead];
  const auto* from = static_cast<const std::byte*>(src);
  auto* to = static_cast<std::byte*>(dst);
  for (int64_t n = 0; n < count; ++n, from += tile.row_bytes, to += tile.row_bytes) {
    decode_kv_row(shape.kv, shape.E, from, row);
    isa.plain.rope_row(tile, row, 1, rotation);
    encode_kv_row(shape.kv, shape.E, row, to);
  }
}

}  // namespace kvilt::x86
