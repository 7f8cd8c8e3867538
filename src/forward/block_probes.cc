// forward/block_probes.cc: what probes measure for choices of blocks (forward/probes.h): queries and keys before RoPE,
// which compare wherever they stand, and how the attention that a token gets fades with the distance.
// Cost:       kFade is one more product of the rows' queries with their keys, and a logarithm for each pair of rows (that of
//             their distance is in a table); in
//             memory kRowsAtOnce rows of weights for each KV head.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "forward/probes.h"
#include "tensor/kv_row.h"
#include "tensor/rope.h"

namespace kvilt {
namespace {

constexpr int64_t kRowsAtOnce = 32;
constexpr double kLeastWeight = 1e-9;  // for logarithms

int64_t number_in(const Runs& rows, int32_t pos) { return count(intersect(rows, Runs{{0, pos}})); }

}  // namespace

// kQueries. sums: H E.
void ProbePass::queries(const AttendedRows& rows, std::vector<double>& sums) const {
  CHECK(rows.kv);
  const ModelConfig& c = model_.config();
  const RopeConfig& rope = rows.kv->ropes().at(rows.layer);
  const int64_t n = looking_.size(), group = c.H / c.G;
  std::vector<float> q(static_cast<size_t>(c.E));
  for (int64_t r = 0; r < n; ++r) {
    const std::vector<float> angles = rotation(rope, looking_.at[r]);
    for (int64_t h = 0; h < c.H; ++h) {
      std::copy_n(looking_.q.view().row(h / group * n + r) + h % group * c.E, c.E, q.data());
      rotate_head(rope.pairs, rope.rotary_dim, angles.data(), -1.0f, q.data());
      for (int e = 0; e < c.E; ++e) sums[h * c.E + e] += q[e];
    }
  }
}

// kBlockKeys. sums: [block][G E].
void ProbePass::block_keys(const ProbeSpec& spec, const AttendedRows& rows, std::vector<double>& sums) const {
  CHECK(rows.kv);
  const KvShape& shape = rows.kv->shape();
  const LayerRopes ropes = rows.kv->ropes();
  const RopeConfig& rope = ropes.at(rows.layer);
  std::vector<KvSpan> spans;
  std::vector<float> k(static_cast<size_t>(shape.E));
  for (const int32_t pos : looking_.at) {
    const std::vector<float> angles = rotation(rope, pos);
    double* to = sums.data() + number_in(spec.rows, pos) / spec.block * shape.G * shape.E;
    for (int g = 0; g < shape.G; ++g, to += shape.E) {
      spans.clear();
      rows.kv->resolve(rows.layer, g, {pos, pos + 1}, {.window = 0}, spans);
      CHECK(spans.size() == 1 && spans[0].pos == pos);
      decode_kv_row(shape.dtype, shape.E, spans[0].k, k.data());
      if (spans[0].rotation) rotate_head(rope.pairs, rope.rotary_dim, spans[0].rotation, 1.0f, k.data());
      rotate_head(rope.pairs, rope.rotary_dim, angles.data(), -1.0f, k.data());
      for (int e = 0; e < shape.E; ++e) to[e] += k[e];
    }
  }
}

// kFade. sums: [row of the spec][kFadeSums].
double ProbePass::fade(const ProbeSpec& spec, const AttendedRows& rows, std::vector<double>& sums) {
  const ModelConfig& c = model_.config();
  const int64_t n = looking_.size(), group = c.H / c.G, keys = looking_.pos.back() + 1;
  const std::vector<int32_t> all = positions(intersect(spec.rows, Runs{{0, looking_.at.back() + 1}}));
  std::vector<int32_t> key_of = all;  // as kernels number keys
  if (rows.seen) {
    for (int32_t& key : key_of) key = static_cast<int32_t>(number_in(*rows.seen, key));
  }
  std::vector<double> log_distance(static_cast<size_t>(looking_.at.back() - all.front() + 1));
  for (size_t d = 1; d < log_distance.size(); ++d) log_distance[d] = std::log(static_cast<double>(d));
  std::vector<float> weights(static_cast<size_t>(c.G * kRowsAtOnce * keys));
  std::vector<AttendTask> tasks(looking_.tasks);
  double flops = 0;
  for (int64_t first = 0; first < n; first += kRowsAtOnce) {
    const int64_t some = std::min(kRowsAtOnce, n - first);
    std::ranges::fill(weights, 0.0f);
    std::vector<ColumnSumTask> wanted;
    for (int g = 0; g < c.G; ++g) {
      tasks[g].q = looking_.tasks[g].q + first * tasks[g].q_stride;
      tasks[g].lse = looking_.tasks[g].lse + first * group;
      tasks[g].pos = std::span<const int32_t>(looking_.pos).subspan(first, some);
      wanted.push_back({&tasks[g], nullptr, false, weights.data() + g * kRowsAtOnce * keys, keys});
    }
    model_.backend().column_sums(model_.attend_shape(rows.kv_type), wanted, pool_);
    const auto add = [&](int64_t t) {  // what these rows pay to the spec's row t
      double* to = sums.data() + t * kFadeSums;
      for (int64_t r = 0; r < some; ++r) {
        const int32_t distance = looking_.at[first + r] - all[t];
        if (distance <= 0) continue;
        double w = 0;
        for (int g = 0; g < c.G; ++g) w += weights[(g * kRowsAtOnce + r) * keys + key_of[t]];
        w = std::isfinite(w) ? w / c.H : 0;
        const double log_w = std::log(std::max(w, kLeastWeight));
        to[0] += w;
        to[1] += log_w;
        to[2] += log_w * log_distance[distance];
      }
    };
    constexpr int64_t kPart = 64;
    pool_.parallel_for((std::ssize(all) + kPart - 1) / kPart, [&](int64_t part, int) {
      for (int64_t t = part * kPart; t < std::min(std::ssize(all), (part + 1) * kPart); ++t) add(t);
    });
    for (const int32_t at : tasks[0].pos) flops += 2.0 * c.E * c.H * (at + 1);
  }
  return flops;
}

}  // namespace kvilt
