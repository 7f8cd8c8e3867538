#include "forward/carry.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "tensor/kv_row.h"

namespace kvilt {
namespace {

// Turns the first R elements by cos[R/2], sin[R/2]; back: by the opposite angle.
void turn(const RopeConfig& rope, const float* angles, bool back, float* x) {
  const int half = rope.rotary_dim / 2;
  const float sign = back ? -1.0f : 1.0f;
  const float *c = angles, *s = angles + half;
  if (rope.pairs == RopePairs::kHalves) {
    for (int i = 0; i < half; ++i) {
      const float a = x[i], b = x[i + half];
      x[i] = a * c[i] - sign * b * s[i];
      x[i + half] = b * c[i] + sign * a * s[i];
    }
  } else {
    for (int i = 0; i < half; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * c[i] - sign * b * s[i];
      x[2 * i + 1] = b * c[i] + sign * a * s[i];
    }
  }
}

}  // namespace

// The placed K (as it stands at pos) and V of all KV heads. REQUIRES: something is placed at pos.
void CarryPass::load(const FreshRows& rows, int32_t pos, float* k, float* v) const {
  const KvShape& shape = rows.kv->shape();
  const auto placed = rows.kv->placed(rows.layer, pos);
  CHECK(placed.pages);
  for (int g = 0; g < shape.G; ++g, k += shape.E, v += shape.E) {
    decode_kv_row(shape.dtype, shape.E, placed.pages->k(rows.layer, g, placed.slot), k);
    decode_kv_row(shape.dtype, shape.E, placed.pages->v(rows.layer, g, placed.slot), v);
    if (placed.rotation) turn(rows.kv->ropes().at(rows.layer), placed.rotation, false, k);
  }
}

// cos and sin of positions, computed once each.
void CarryPass::need_angles(const FreshRows& rows, std::span<const int32_t> positions) {
  const LayerRopes ropes = rows.kv->ropes();
  auto& table = angles_[ropes.kind(rows.layer)];
  for (const int32_t pos : positions) {
    if (static_cast<size_t>(pos) >= table.size()) table.resize(static_cast<size_t>(pos) + 1);
    std::vector<float>& out = table[static_cast<size_t>(pos)];
    if (out.empty()) out = rotation(ropes.at(rows.layer), pos);
  }
}

void CarryPass::compare(const FreshRows& rows, Changes& out) {
  const KvShape& shape = rows.kv->shape();
  const int64_t n = static_cast<int64_t>(rows.pos.size()), width = int64_t{shape.G} * shape.E;
  const Mat<float> k = out.k.reshape(n, width), v = out.v.reshape(n, width);
  out.placed.assign(static_cast<size_t>(n), 0);
  need_angles(rows, rows.pos);
  const LayerRopes ropes = rows.kv->ropes();
  const RopeConfig& rope = ropes.at(rows.layer);
  const auto& table = angles_[ropes.kind(rows.layer)];
  pool_.parallel_for(n, [&](int64_t r, int) {
    const int32_t pos = rows.pos[static_cast<size_t>(r)];
    if (!rows.kv->placed(rows.layer, pos).pages) {
      std::fill_n(k.row(r), width, 0.0f);
      std::fill_n(v.row(r), width, 0.0f);
      return;
    }
    out.placed[static_cast<size_t>(r)] = 1;
    load(rows, pos, k.row(r), v.row(r));
    for (int64_t i = 0; i < width; ++i) {
      k.row(r)[i] = rows.k.row(r)[i] - k.row(r)[i];
      v.row(r)[i] = rows.v.row(r)[i] - v.row(r)[i];
    }
    const float* back = table[static_cast<size_t>(pos)].data();
    for (int g = 0; g < shape.G; ++g) turn(rope, back, true, k.row(r) + int64_t{g} * shape.E);
  });
}

void CarryPass::keep(const FreshRows& rows, std::span<const uint8_t> heads) const {
  if (std::find(heads.begin(), heads.end(), uint8_t{1}) == heads.end()) return;
  const KvShape& shape = rows.kv->shape();
  pool_.parallel_for(static_cast<int64_t>(rows.pos.size()), [&](int64_t r, int) {
    const auto placed = rows.kv->placed(rows.layer, rows.pos[static_cast<size_t>(r)]);
    if (!placed.pages) return;
    for (int g = 0; g < shape.G; ++g) {
      if (!heads[static_cast<size_t>(g)]) continue;
      float *k = rows.k.row(r) + int64_t{g} * shape.E, *v = rows.v.row(r) + int64_t{g} * shape.E;
      decode_kv_row(shape.dtype, shape.E, placed.pages->k(rows.layer, g, placed.slot), k);
      decode_kv_row(shape.dtype, shape.E, placed.pages->v(rows.layer, g, placed.slot), v);
      if (placed.rotation) turn(rows.kv->ropes().at(rows.layer), placed.rotation, false, k);
    }
  });
}

struct CarryPass::Group {
  CarryWeights weights;
  std::vector<int64_t> rows;  // of the sources
};

double CarryPass::carry(const Carry& carry, const Runs& written, const FreshRows& rows, const Changes& changes,
                        double& bytes) {
  std::vector<Group> groups;
  const KvShape& shape = rows.kv->shape();
  double flops = 0;
  for (const Run& part : carry.parts) {
    const auto first = std::lower_bound(rows.pos.begin(), rows.pos.end(), part.begin);
    if (first == rows.pos.end() || *first >= part.end) continue;
    Group group{carry_weights(carry, part, written), {}};
    const auto& sources = group.weights.sources;
    if (sources.empty()) continue;
    CHECK(sources.front() == *first);
    for (size_t i = 0; i < sources.size(); ++i) {
      group.rows.push_back(first - rows.pos.begin() + static_cast<int64_t>(i));
      CHECK(rows.pos[static_cast<size_t>(group.rows.back())] == sources[i]);
    }
    const auto m = static_cast<double>(group.weights.targets.size());
    flops += 4.0 * m * static_cast<double>(sources.size()) * shape.G * shape.E;
    bytes += 4.0 * m * static_cast<double>(shape.G * shape.row_bytes());
    need_angles(rows, group.weights.targets);
    groups.push_back(std::move(group));
  }
  pool_.parallel_for(static_cast<int64_t>(groups.size()),
                     [&](int64_t i, int) { mend(groups[static_cast<size_t>(i)], carry, rows, changes); });
  return flops;
}

void CarryPass::mend(const Group& group, const Carry& carry, const FreshRows& rows, const Changes& changes) const {
  const KvShape& shape = rows.kv->shape();
  const auto n = static_cast<int64_t>(group.rows.size()), m = static_cast<int64_t>(group.weights.targets.size());
  const int64_t width = int64_t{shape.G} * shape.E;
  std::vector<float> change(static_cast<size_t>(n * 2 * width)), sum(static_cast<size_t>(m * 2 * width));
  const LayerRopes ropes = rows.kv->ropes();
  const RopeConfig& rope = ropes.at(rows.layer);
  const auto& table = angles_[ropes.kind(rows.layer)];
  const bool changes_here = rows.layer >= carry.layer_begin;
  if (changes_here) {
    for (int64_t i = 0; i < n; ++i) {
      std::copy_n(changes.k.view().row(group.rows[static_cast<size_t>(i)]), width, change.data() + i * 2 * width);
      std::copy_n(changes.v.view().row(group.rows[static_cast<size_t>(i)]), width, change.data() + (i * 2 + 1) * width);
    }
    model_.backend().mix({group.weights.w.data(), m, n}, {change.data(), n, 2 * width}, {sum.data(), m, 2 * width});
  }
  std::vector<float> k(static_cast<size_t>(width)), v(static_cast<size_t>(width));
  for (int64_t u = 0; u < m; ++u) {
    const int32_t pos = group.weights.targets[static_cast<size_t>(u)];
    load(rows, pos, k.data(), v.data());
    if (changes_here) {
      float *dk = sum.data() + u * 2 * width, *dv = dk + width;
      for (int g = 0; g < shape.G; ++g) {
        turn(rope, table[static_cast<size_t>(pos)].data(), false, dk + int64_t{g} * shape.E);
      }
      for (int64_t i = 0; i < width; ++i) {
        k[static_cast<size_t>(i)] += carry.scale_k * dk[i];
        v[static_cast<size_t>(i)] += carry.scale_v * dv[i];
      }
    }
    rows.kv->write(rows.layer, pos, k.data(), v.data());
  }
}

}  // namespace kvilt
