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

// The placed K (as it stands there) and V of one KV head. REQUIRES: something is placed.
void CarryPass::load(const PageTable& kv, int layer, const PageTable::Placed& placed, int head, float* k,
                     float* v) const {
  const KvShape& shape = kv.shape();
  decode_kv_row(shape.dtype, shape.E, placed.pages->k(layer, head, placed.slot), k);
  if (v) decode_kv_row(shape.dtype, shape.E, placed.pages->v(layer, head, placed.slot), v);
  if (placed.rotation) turn(kv.ropes().at(layer), placed.rotation, false, k);
}

// cos and sin of positions under a layer's RoPE, computed once each.
void CarryPass::need_angles(const PageTable& kv, int layer, std::span<const int32_t> positions) {
  const LayerRopes ropes = kv.ropes();
  auto& table = angles_[ropes.kind(layer)];
  for (const int32_t pos : positions) {
    if (static_cast<size_t>(pos) >= table.size()) table.resize(static_cast<size_t>(pos) + 1);
    std::vector<float>& out = table[static_cast<size_t>(pos)];
    if (out.empty()) out = rotation(ropes.at(layer), pos);
  }
}

void CarryPass::compare(const FreshRows& rows, Changes& out) {
  const KvShape& shape = rows.kv->shape();
  const int64_t n = static_cast<int64_t>(rows.pos.size()), width = int64_t{shape.G} * shape.E;
  const Mat<float> k = out.k.reshape(n, width), v = out.v.reshape(n, width);
  out.placed.assign(static_cast<size_t>(n), 0);
  need_angles(*rows.kv, rows.layer, rows.pos);
  const LayerRopes ropes = rows.kv->ropes();
  const RopeConfig& rope = ropes.at(rows.layer);
  const auto& table = angles_[ropes.kind(rows.layer)];
  pool_.parallel_for(n, [&](int64_t r, int) {
    const int32_t pos = rows.pos[static_cast<size_t>(r)];
    const auto placed = rows.kv->placed(rows.layer, pos);
    if (!placed.pages) {
      std::fill_n(k.row(r), width, 0.0f);
      std::fill_n(v.row(r), width, 0.0f);
      return;
    }
    out.placed[static_cast<size_t>(r)] = 1;
    for (int g = 0; g < shape.G; ++g) {
      load(*rows.kv, rows.layer, placed, g, k.row(r) + int64_t{g} * shape.E, v.row(r) + int64_t{g} * shape.E);
    }
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
      load(*rows.kv, rows.layer, placed, g, rows.k.row(r) + int64_t{g} * shape.E, rows.v.row(r) + int64_t{g} * shape.E);
    }
  });
}

namespace {

// The layers whose keys say what a token is: a quarter, half and three quarters up. Which layers, and
// whether keys or values, matters little (docs/math/carry.md).
std::vector<int> content_layers(int L) { return {L / 4, L / 2, 3 * L / 4}; }

// Rows of `pos` (ascending) that stand in the group's parts.
std::vector<int64_t> rows_of(const CarryGroup& group, std::span<const int32_t> pos) {
  std::vector<int64_t> out;
  for (const Run& part : group.parts) {
    const auto first = std::lower_bound(pos.begin(), pos.end(), part.begin);
    for (auto at = first; at != pos.end() && *at < part.end; ++at) out.push_back(at - pos.begin());
  }
  return out;
}

// Every column centred, and divided by its standard deviation and by sqrt(columns): then squares of differences add up to the
// mean square in units of the spread.
void standardize(std::vector<float>& x, int64_t rows, int64_t columns) {
  std::vector<double> sum(static_cast<size_t>(columns)), square(static_cast<size_t>(columns));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < columns; ++c) {
      const double e = x[static_cast<size_t>(i * columns + c)];
      sum[static_cast<size_t>(c)] += e;
      square[static_cast<size_t>(c)] += e * e;
    }
  }
  for (int64_t c = 0; c < columns; ++c) {
    const double mean = sum[static_cast<size_t>(c)] / static_cast<double>(rows);
    const double variance = square[static_cast<size_t>(c)] / static_cast<double>(rows) - mean * mean;
    const double scale = variance > 1e-12 ? 1 / std::sqrt(variance * static_cast<double>(columns)) : 0;
    for (int64_t i = 0; i < rows; ++i) {
      float& e = x[static_cast<size_t>(i * columns + c)];
      e = static_cast<float>((e - mean) * scale);
    }
  }
}

// Squared distances of the rows of x to its first n, as a mean over the columns: rows x n.
std::vector<float> squared_distances(const Backend& backend, const std::vector<float>& x, int64_t rows, int64_t n) {
  const int64_t dims = static_cast<int64_t>(x.size()) / rows;
  std::vector<float> first(static_cast<size_t>(dims * n)), out(static_cast<size_t>(rows * n));
  std::vector<float> square(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (int64_t c = 0; c < dims; ++c) {
      const float e = x[static_cast<size_t>(i * dims + c)];
      sum += double{e} * e;
      if (i < n) first[static_cast<size_t>(c * n + i)] = e;
    }
    square[static_cast<size_t>(i)] = static_cast<float>(sum);
  }
  backend.mix({x.data(), rows, dims}, {first.data(), dims, n}, {out.data(), rows, n});
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float& d = out[static_cast<size_t>(i * n + j)];
      d = std::max(0.0f, square[static_cast<size_t>(i)] + square[static_cast<size_t>(j)] - 2 * d);
    }
  }
  return out;
}

}  // namespace

struct CarryPass::Group {
  const CarryWeights* weights = nullptr;
  std::vector<int64_t> rows;          // of the sources
  std::vector<float> change;          // n x 2 G E: K's, then V's
  std::vector<CarryState::Fit> fits;  // of this group alone; then gain holds what its layer's fits give
  std::vector<float> gain;            // 2 G
};

// Weights of some groups, which serve the layers to come. Returns the operations of the contents' distances and adds the bytes
// read for them.
double CarryPass::weigh_all(const Carry& carry, std::span<const size_t> which, const PageTable& kv, CarryState& state,
                            double& bytes) {
  double flops = 0;
  const KvShape& shape = kv.shape();
  if (carry.kernel == Carry::Kernel::kContent) {
    for (const size_t i : which) {
      const CarryWeights& group = state.weights_[i];
      const auto n = static_cast<double>(group.sources.size()), all = n + static_cast<double>(group.targets.size());
      for (const int layer : content_layers(shape.L)) {
        need_angles(kv, layer, group.sources);
        need_angles(kv, layer, group.targets);
        flops += 2 * all * n * shape.G * shape.E;
        bytes += all * static_cast<double>(shape.G * shape.row_bytes());  // keys alone
      }
    }
  }
  pool_.parallel_for(static_cast<int64_t>(which.size()), [&](int64_t w, int) {
    const size_t i = which[static_cast<size_t>(w)];
    CarryWeights& weights = state.weights_[i];
    std::vector<float> distance;
    if (carry.kernel == Carry::Kernel::kContent) {
      const auto n = static_cast<int64_t>(weights.sources.size()),
                 all = n + static_cast<int64_t>(weights.targets.size());
      distance = squared_distances(model_.backend(), contents(kv, weights), all, n);
    }
    weigh(carry, carry.groups[i], distance, weights);
  });
  return flops;
}

// What stands at (sources, then targets): the placed keys of the content layers, unturned, side by side; then standardized.
std::vector<float> CarryPass::contents(const PageTable& kv, const CarryWeights& group) const {
  const KvShape& shape = kv.shape();
  const std::vector<int> layers = content_layers(shape.L);
  const size_t n = group.sources.size(), all = n + group.targets.size();
  const size_t dims = layers.size() * static_cast<size_t>(shape.G * shape.E);
  std::vector<float> out(all * dims);
  for (size_t i = 0; i < all; ++i) {
    const int32_t pos = i < n ? group.sources[i] : group.targets[i - n];
    float* k = out.data() + i * dims;
    for (const int layer : layers) {
      const auto placed = kv.placed(layer, pos);
      CHECK(placed.pages);
      const float* back = angles_[kv.ropes().kind(layer)][static_cast<size_t>(pos)].data();
      for (int g = 0; g < shape.G; ++g, k += shape.E) {
        load(kv, layer, placed, g, k, nullptr);
        turn(kv.ropes().at(layer), back, true, k);
      }
    }
  }
  standardize(out, static_cast<int64_t>(all), static_cast<int64_t>(dims));
  return out;
}

double CarryPass::carry(const Carry& carry, const Runs& written, const FreshRows& rows, const Changes& changes,
                        CarryState& state, double& bytes) {
  std::vector<Group> groups;
  std::vector<size_t> unweighed;  // indices of carry.groups
  const KvShape& shape = rows.kv->shape();
  const auto layer = static_cast<size_t>(rows.layer);
  state.weights_.resize(carry.groups.size());
  state.fits_.resize(static_cast<size_t>(shape.L));
  state.fits_[layer].resize(static_cast<size_t>(2 * shape.G));
  double flops = 0;
  for (size_t i = 0; i < carry.groups.size(); ++i) {
    std::vector<int64_t> sources = rows_of(carry.groups[i], rows.pos);
    if (sources.empty()) continue;
    CarryWeights& weights = state.weights_[i];
    const auto at = [&](int64_t row, int32_t pos) { return rows.pos[static_cast<size_t>(row)] == pos; };
    if (!std::equal(sources.begin(), sources.end(), weights.sources.begin(), weights.sources.end(), at)) {
      weights = carry_positions(carry.groups[i], written);
      if (weights.sources.empty()) continue;
      CHECK(std::equal(sources.begin(), sources.end(), weights.sources.begin(), weights.sources.end(), at));
      unweighed.push_back(i);
    }
    const auto n = static_cast<double>(sources.size()), m = static_cast<double>(weights.targets.size());
    flops += 4.0 * (m + (carry.gain ? n : 0)) * n * shape.G * shape.E;
    bytes += 4.0 * m * static_cast<double>(shape.G * shape.row_bytes());
    need_angles(*rows.kv, rows.layer, weights.targets);
    groups.push_back({&weights, std::move(sources), {}, {}, {}});
  }
  if (!unweighed.empty()) flops += weigh_all(carry, unweighed, *rows.kv, state, bytes);
  const auto each = [&](auto&& step) {
    pool_.parallel_for(static_cast<int64_t>(groups.size()),
                       [&](int64_t i, int) { step(groups[static_cast<size_t>(i)]); });
  };
  if (rows.layer >= carry.layer_begin) {
    each([&](Group& group) {
      gather(rows, changes, group);
      if (carry.gain) predict(rows, group);
    });
  }
  for (Group& group : groups) {  // in order: a group's gain comes from itself and those before it
    group.gain.assign(static_cast<size_t>(2 * shape.G), 1);
    for (size_t i = 0; i < group.fits.size(); ++i) {
      CarryState::Fit& fit = state.fits_[layer][i];
      fit.product += group.fits[i].product;
      fit.square += group.fits[i].square;
      group.gain[i] = fit.gain();
    }
  }
  each([&](Group& group) { mend(group, carry, rows); });
  return flops;
}

void CarryPass::gather(const FreshRows& rows, const Changes& changes, Group& group) const {
  const int64_t width = int64_t{rows.kv->shape().G} * rows.kv->shape().E;
  const auto n = static_cast<int64_t>(group.weights->sources.size());
  group.change.resize(static_cast<size_t>(n * 2 * width));
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = group.rows[static_cast<size_t>(i)];
    std::copy_n(changes.k.view().row(row), width, group.change.data() + i * 2 * width);
    std::copy_n(changes.v.view().row(row), width, group.change.data() + (i * 2 + 1) * width);
  }
}

// How well every recomputed position's change follows from the others'.
void CarryPass::predict(const FreshRows& rows, Group& group) const {
  const KvShape& shape = rows.kv->shape();
  const auto n = static_cast<int64_t>(group.weights->sources.size());
  const int64_t columns = 2 * int64_t{shape.G} * shape.E;
  std::vector<float> predicted(static_cast<size_t>(n * columns));
  model_.backend().mix({group.weights->left_out.data(), n, n}, {group.change.data(), n, columns},
                       {predicted.data(), n, columns});
  group.fits.resize(static_cast<size_t>(2 * shape.G));
  for (int64_t i = 0; i < n * columns; ++i) {
    CarryState::Fit& fit = group.fits[static_cast<size_t>(i % columns / shape.E)];
    fit.product += double{predicted[static_cast<size_t>(i)]} * group.change[static_cast<size_t>(i)];
    fit.square += double{predicted[static_cast<size_t>(i)]} * predicted[static_cast<size_t>(i)];
  }
}

void CarryPass::mend(const Group& group, const Carry& carry, const FreshRows& rows) const {
  const KvShape& shape = rows.kv->shape();
  const CarryWeights& weights = *group.weights;
  const auto n = static_cast<int64_t>(weights.sources.size()), m = static_cast<int64_t>(weights.targets.size());
  const int64_t width = int64_t{shape.G} * shape.E;
  const LayerRopes ropes = rows.kv->ropes();
  const RopeConfig& rope = ropes.at(rows.layer);
  const auto& table = angles_[ropes.kind(rows.layer)];
  const bool changes_here = !group.change.empty();
  std::vector<float> sum(static_cast<size_t>(changes_here ? m * 2 * width : 0));
  if (changes_here) {
    model_.backend().mix({weights.w.data(), m, n}, {group.change.data(), n, 2 * width}, {sum.data(), m, 2 * width});
  }
  std::vector<float> k(static_cast<size_t>(width)), v(static_cast<size_t>(width));
  for (int64_t u = 0; u < m; ++u) {
    const int32_t pos = weights.targets[static_cast<size_t>(u)];
    const auto placed = rows.kv->placed(rows.layer, pos);
    CHECK(placed.pages);
    for (int g = 0; g < shape.G; ++g) {
      load(*rows.kv, rows.layer, placed, g, k.data() + int64_t{g} * shape.E, v.data() + int64_t{g} * shape.E);
      if (!changes_here) continue;
      float *dk = sum.data() + u * 2 * width + int64_t{g} * shape.E, *dv = dk + width;
      turn(rope, table[static_cast<size_t>(pos)].data(), false, dk);
      const float gain_k = carry.scale_k * group.gain[static_cast<size_t>(g)];
      const float gain_v = carry.scale_v * group.gain[static_cast<size_t>(shape.G + g)];
      for (int e = 0; e < shape.E; ++e) {
        k[static_cast<size_t>(g * shape.E + e)] += gain_k * dk[e];
        v[static_cast<size_t>(g * shape.E + e)] += gain_v * dv[e];
      }
    }
    rows.kv->write(rows.layer, pos, k.data(), v.data());
  }
}

}  // namespace kvilt
