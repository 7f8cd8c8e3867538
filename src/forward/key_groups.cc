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

KeyGroups::KeyGroups(const PreparedModel& model, const PageTable& kv, const Of& of, const BlockOptions& options)
    : model_(model),
      kv_(kv),
      of_(of),
      options_(options),
      width_(width_of(options)),
      depth_(means() ? model.config().E : int64_t{width_} * model.config().E) {
  CHECK(kSparseTile % width_ == 0);
  kv_.resolve(of_.layer, of_.head, {of_.end - 1, of_.end}, {}, spans_);
}

double KeyGroups::build(ThreadPool& pool) {
  const int64_t panels = (of_.end + width_ * kPanel - 1) / (width_ * kPanel);
  features_.assign(static_cast<size_t>(panels * depth_ * kPanel), 0);
  pool.parallel_for(panels, [&](int64_t panel, int) { build_panel(panel); });
  return means() ? static_cast<double>(of_.end) * model_.config().E : 0;
}

void KeyGroups::build_panel(int64_t panel) {
  const KvShape& shape = kv_.shape();
  const LayerRopes ropes = kv_.ropes();
  const RopeConfig& rope = ropes.at(of_.layer);
  const auto begin = static_cast<int32_t>(panel * kPanel) * width_, end = std::min(of_.end, begin + kPanel * width_);
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
  float* to = features_.data() + (at / kPanel * depth_ + first) * kPanel + at % kPanel;
  for (size_t e = 0; e < key.size(); ++e) to[e * kPanel] += key[e];
}

// Sums of keys become means.
void KeyGroups::divide(int64_t panel) {
  for (int32_t i = 0; i < kPanel; ++i) {
    const auto keys = std::min<int64_t>(width_, of_.end - (panel * kPanel + i) * width_);
    if (keys <= 0) return;
    float* to = features_.data() + panel * depth_ * kPanel + i;
    for (int64_t f = 0; f < depth_; ++f) to[f * kPanel] /= static_cast<float>(keys);
  }
}

// The rows' queries as features of groups, scaled as scores are.
KeyGroups::RowGroups KeyGroups::groups_of(const RowsAt& chunk, std::span<const int64_t> rows) const {
  const int64_t E = model_.config().E, size = group() * depth_;
  RowGroups out;
  for (const int64_t r : rows) {
    const int32_t pos = chunk.pos[r];
    if (out.all.empty() || (!means() && out.all.back().at != pos / width_)) {
      out.all.push_back({pos / width_, 0});
      out.queries.resize(out.queries.size() + static_cast<size_t>(size));
    }
    ++out.all.back().rows;
    const int64_t first = means() ? 0 : (width_ - 1 - pos % width_) * E;
    const float* q = chunk.q.row(r) + of_.head * group() * E;
    float* to = out.queries.data() + std::ssize(out.queries) - size + first;
    for (int64_t h = 0; h < group(); ++h) {
      for (int64_t e = 0; e < E; ++e) to[h * depth_ + e] += q[h * E + e];
    }
  }
  const float scale = model_.attend_shape(kv_.shape().dtype).scale;
  for (size_t i = 0; i < out.all.size(); ++i) {
    float* of = out.queries.data() + static_cast<int64_t>(i) * size;
    for (int64_t f = 0; f < size; ++f) of[f] *= scale / static_cast<float>(out.all[i].rows);
  }
  return out;
}

// All groups of rows meet a panel of keys while it is in the cache; those before it in the text drop what they got.
KeyGroups::Weighed KeyGroups::weigh(const RowsAt& chunk, std::span<const int64_t> rows, int32_t tile) const {
  const int32_t per_block = kSparseTile / width_, keys = (of_.end + width_ - 1) / width_;
  Weighed out{BlockWeights(static_cast<size_t>(tile) + 1), 0};
  const int32_t most = std::min(keys, (tile + 1) * per_block);
  const RowGroups from = groups_of(chunk, rows);
  const int64_t M = std::ssize(from.all) * group();
  std::vector<float> scores(static_cast<size_t>(M * most));
  const Mat<const float> queries(from.queries.data(), M, depth_);
  const Mat<float> to(scores.data(), M, most);
  for (int32_t first = 0; first < most; first += kPanel) {
    const int32_t end = std::min(most, first + kPanel);
    const Mat<const float> panel(features_.data() + int64_t{first} * depth_, depth_, end - first, kPanel);
    model_.backend().mix(queries, panel, to.slice_cols(first, end));
  }
  for (int64_t m = 0; m < M; ++m) {
    const int32_t n = means() ? most : std::min(most, from.all[static_cast<size_t>(m / group())].at + 1);
    add_softmax({to.row(m), static_cast<size_t>(n)}, per_block, out.blocks);
  }
  out.flops = 2.0 * static_cast<double>(depth_ * M) * most;
  return out;
}

}  // namespace kvilt
