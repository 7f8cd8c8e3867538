#include "forward/key_groups.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/kv_row.h"
#include "tensor/rope.h"

namespace kvilt {
namespace {

int32_t width_of(const BlockOptions& options) {
  return options.score == BlockScore::kMeans ? kSparseTile : options.stride;
}

}  // namespace

KeyGroups::KeyGroups(const PreparedModel& model, const PageTable& kv, const Of& of, const BlockOptions& options,
                     Memory& memory)
    : model_(model),
      kv_(kv),
      of_(of),
      options_(options),
      width_(width_of(options)),
      depth_(means() ? model.config().E : int64_t{width_} * model.config().E),
      memory_(memory) {
  CHECK(kSparseTile % width_ == 0);
  kv_.resolve(of_.layer, of_.head, {of_.end - 1, of_.end}, {}, spans_);
}

double KeyGroups::build(ThreadPool& pool) {
  const int64_t panels = (of_.end + width_ * kPanel - 1) / (width_ * kPanel);
  memory_.features.reshape(panels * depth_, kPanel);
  pool.parallel_for(panels, [&](int64_t panel, int) { build_panel(panel); });
  return means() ? static_cast<double>(of_.end) * model_.config().E : 0;
}

void KeyGroups::build_panel(int64_t panel) {
  const KvShape& shape = kv_.shape();
  const LayerRopes ropes = kv_.ropes();
  const RopeConfig& rope = ropes.at(of_.layer);
  const auto begin = static_cast<int32_t>(panel * kPanel) * width_, end = std::min(of_.end, begin + kPanel * width_);
  std::fill_n(memory_.features.view().row(panel * depth_), depth_ * kPanel, 0.0f);
  std::vector<float> key(static_cast<size_t>(shape.E));
  for (const KvSpan& span : spans_) {
    const auto* bytes = static_cast<const std::byte*>(span.k);
    for (int32_t pos = std::max(begin, span.pos); pos < std::min(end, span.pos + span.count); ++pos) {
      decode_kv_row(shape.dtype, shape.E, bytes + (pos - span.pos) * shape.row_bytes(), key.data());
      if (span.rotation) rotate_head(rope.pairs, rope.rotary_dim, span.rotation, 1.0f, key.data());
      add_key(pos, key);
    }
  }
  if (means()) divide(panel);
}

void KeyGroups::add_key(int32_t pos, std::span<const float> key) {
  const int64_t at = pos / width_, first = means() ? 0 : (pos % width_) * std::ssize(key);
  float* to = memory_.features.view().row(at / kPanel * depth_ + first) + at % kPanel;
  for (size_t e = 0; e < key.size(); ++e) to[e * kPanel] += key[e];
}

// Sums of keys become means.
void KeyGroups::divide(int64_t panel) {
  for (int32_t i = 0; i < kPanel; ++i) {
    const auto keys = std::min<int64_t>(width_, of_.end - (panel * kPanel + i) * width_);
    if (keys <= 0) return;
    float* to = memory_.features.view().row(panel * depth_) + i;
    for (int64_t f = 0; f < depth_; ++f) to[f * kPanel] /= static_cast<float>(keys);
  }
}

KeyGroups::RowGroups KeyGroups::groups_of(const RowsAt& chunk, std::span<const Tile> tiles) const {
  RowGroups out;
  for (const Tile& tile : tiles) {
    out.first.push_back(std::ssize(out.all));
    for (const int64_t r : tile.rows) {
      const int32_t at = chunk.pos[r] / width_;
      const bool same = std::ssize(out.all) > out.first.back() && (means() || out.all.back().at == at);
      if (!same) out.all.push_back({at, 0});
      ++out.all.back().rows;
    }
  }
  out.first.push_back(std::ssize(out.all));
  return out;
}

// The rows' queries as features of their groups, scaled as scores are.
void KeyGroups::add_queries(const RowsAt& chunk, std::span<const int64_t> rows, std::span<const RowGroups::One> groups,
                            float* to) const {
  const int64_t E = model_.config().E, size = group() * depth_;
  const float scale = model_.attend_shape(kv_.shape().dtype).scale;
  for (const RowGroups::One& one : groups) {
    std::fill_n(to, size, 0.0f);
    for (const int64_t r : rows.first(static_cast<size_t>(one.rows))) {
      const int64_t first = means() ? 0 : (width_ - 1 - chunk.pos[r] % width_) * E;
      const float* q = chunk.q.row(r) + of_.head * group() * E;
      for (int64_t h = 0; h < group(); ++h) {
        for (int64_t e = 0; e < E; ++e) to[h * depth_ + first + e] += q[h * E + e];
      }
    }
    for (int64_t f = 0; f < size; ++f) to[f] *= scale / static_cast<float>(one.rows);
    rows = rows.subspan(static_cast<size_t>(one.rows));
    to += size;
  }
}

// All groups of rows meet a panel of keys while it is in the cache; those before it in the text drop what they got.
std::vector<KeyGroups::Weighed> KeyGroups::weigh(const RowsAt& chunk, std::span<const Tile> tiles,
                                                 ThreadPool& pool) const {
  const RowGroups from = groups_of(chunk, tiles);
  const int64_t M = std::ssize(from.all) * group(), panels = (keys_of(tiles.back()) + kPanel - 1) / kPanel;
  const Mat<float> queries = memory_.queries.reshape(M, depth_), to = memory_.scores.reshape(M, panels * kPanel);
  pool.parallel_for(std::ssize(tiles), [&](int64_t t, int) {
    const int64_t first = from.first[t], last = from.first[t + 1];
    add_queries(chunk, tiles[t].rows, std::span(from.all).subspan(first, last - first), queries.row(first * group()));
  });
  pool.parallel_for(panels, [&](int64_t n, int) {
    const auto looks = std::ranges::find_if(tiles, [&](const Tile& tile) { return keys_of(tile) > n * kPanel; });
    const int64_t first = from.first[static_cast<size_t>(looks - tiles.begin())] * group();
    const Mat<const float> panel = memory_.features.view().slice_rows(n * depth_, (n + 1) * depth_);
    model_.backend().mix(queries.slice_rows(first, M), panel,
                         to.slice_rows(first, M).slice_cols(n * kPanel, (n + 1) * kPanel));
  });
  std::vector<Weighed> out(tiles.size());
  pool.parallel_for(std::ssize(tiles), [&](int64_t t, int) {
    const int32_t keys = keys_of(tiles[t]);
    out[t].blocks.resize(static_cast<size_t>(tiles[t].at) + 1);
    for (int64_t m = from.first[t] * group(); m < from.first[t + 1] * group(); ++m) {
      const int32_t n = means() ? keys : std::min(keys, from.all[static_cast<size_t>(m / group())].at + 1);
      add_softmax({to.row(m), static_cast<size_t>(n)}, kSparseTile / width_, out[t].blocks);
    }
    out[t].flops = 2.0 * static_cast<double>(depth_ * (from.first[t + 1] - from.first[t]) * group()) * keys;
  });
  return out;
}

}  // namespace kvilt
