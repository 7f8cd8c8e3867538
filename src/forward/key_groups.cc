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

bool in_pairs(const PreparedModel& model, const PageTable& kv) {
  return model.backend().bf16_matmul_pays() && attends_in_bf16(model.backend(), kv.shape().dtype, model.config().E);
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
      dtype_(!means() && in_pairs(model, kv) ? DType::kBF16 : DType::kF32),
      memory_(memory) {
  CHECK(kSparseTile % width_ == 0);
  kv_.resolve(of_.layer, of_.head, {of_.end - 1, of_.end}, {}, spans_);
}

double KeyGroups::build(ThreadPool& pool) {
  constexpr int32_t kSlice = 512;  // positions: a few microseconds
  const int64_t groups = (of_.end + width_ - 1) / width_;
  memory_.features.reshape(groups, feature_bytes() / 4);
  pool.parallel_for((of_.end + kSlice - 1) / kSlice, [&](int64_t slice, int) {
    const auto begin = static_cast<int32_t>(slice) * kSlice;
    add_keys(begin, std::min(of_.end, begin + kSlice));
  });
  groups_ = model_.backend().pack({features(0), dtype_, groups, depth_}, pool);
  return means() ? static_cast<double>(of_.end) * model_.config().E : 0;
}

// The groups of [begin, end). REQUIRES: begin is a group's.
void KeyGroups::add_keys(int32_t begin, int32_t end) {
  const KvShape& shape = kv_.shape();
  const LayerRopes ropes = kv_.ropes();
  const RopeConfig& rope = ropes.at(of_.layer);
  const int64_t first = begin / width_, last = (end + width_ - 1) / width_;
  std::fill(features(first), features(last), std::byte{0});
  std::vector<float> key(static_cast<size_t>(shape.E));
  const auto ends_before = [&](const KvSpan& span) { return span.pos + span.count <= begin; };
  for (auto at = std::ranges::partition_point(spans_, ends_before); at != spans_.end() && at->pos < end; ++at) {
    const KvSpan& span = *at;
    for (int32_t pos = std::max(begin, span.pos); pos < std::min(end, span.pos + span.count); ++pos) {
      const auto* row = static_cast<const std::byte*>(span.k) + (pos - span.pos) * shape.row_bytes();
      std::byte* to = features(pos / width_) + (means() ? 0 : pos % width_ * kv_row_bytes(dtype_, shape.E));
      if (!means() && dtype_ == shape.dtype && span.rotation == nullptr) {  // as they are stored
        std::copy_n(row, shape.row_bytes(), to);
        continue;
      }
      decode_kv_row(shape.dtype, shape.E, row, key.data());
      if (span.rotation) rotate_head(rope.pairs, rope.rotary_dim, span.rotation, 1.0f, key.data());
      if (means()) {
        for (int e = 0; e < shape.E; ++e) reinterpret_cast<float*>(to)[e] += key[e];
      } else {
        encode_kv_row(dtype_, shape.E, key.data(), to);
      }
    }
  }
  if (!means()) return;
  for (int64_t group = first; group < last; ++group) {  // sums of keys become means
    auto* mean = reinterpret_cast<float*>(features(group));
    const auto keys = static_cast<float>(std::min<int64_t>(width_, of_.end - group * width_));
    for (int64_t f = 0; f < depth_; ++f) mean[f] /= keys;
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

std::vector<KeyGroups::Weighed> KeyGroups::weigh(const RowsAt& chunk, std::span<const Tile> tiles,
                                                 ThreadPool& pool) const {
  const RowGroups from = groups_of(chunk, tiles);
  const int64_t M = std::ssize(from.all) * group();
  const Mat<float> queries = memory_.queries.reshape(M, depth_), to = memory_.scores.reshape(M, groups_->N);
  pool.parallel_for(std::ssize(tiles), [&](int64_t t, int) {
    const int64_t first = from.first[t], last = from.first[t + 1];
    add_queries(chunk, tiles[t].rows, std::span(from.all).subspan(first, last - first), queries.row(first * group()));
  });
  const MatmulJob products{groups_.get(), nullptr, to};
  model_.backend().matmul(queries, {&products, 1}, pool);
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
