#include "forward/carry.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "tensor/kv_row.h"

namespace kvilt {
namespace {

void rotate(const RopeConfig& rope, const float* angles, float* x) {
  rotate_head(rope.pairs, rope.rotary_dim, angles, 1.0f, x);
}
void rotate_back(const RopeConfig& rope, const float* angles, float* x) {
  rotate_head(rope.pairs, rope.rotary_dim, angles, -1.0f, x);
}

}  // namespace

// The placed K (rotated to its place here) and, if v is not null, V of one KV head. REQUIRES: something is placed.
void CarryPass::load(const PageTable& kv, int layer, const PageTable::Placed& placed, int head, float* k,
                     float* v) const {
  const KvShape& shape = kv.shape();
  decode_kv_row(shape.dtype, shape.E, placed.pages->k(layer, head, placed.slot), k);
  if (v) decode_kv_row(shape.dtype, shape.E, placed.pages->v(layer, head, placed.slot), v);
  if (placed.rotation) rotate(kv.ropes().at(layer), placed.rotation, k);
}

// cos and sin of positions under a layer's RoPE, computed once each.
void CarryPass::need_angles(const PageTable& kv, int layer, std::span<const int32_t> positions) {
  const LayerRopes ropes = kv.ropes();
  auto& table = angles_[ropes.kind(layer)];
  for (const int32_t pos : positions) {
    if (static_cast<size_t>(pos) >= table.size()) table.resize(static_cast<size_t>(pos) + 1);
    if (table[pos].empty()) table[pos] = rotation(ropes.at(layer), pos);
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
    const int32_t pos = rows.pos[r];
    const auto placed = rows.kv->placed(rows.layer, pos);
    if (!placed.pages) {
      std::fill_n(k.row(r), width, 0.0f);
      std::fill_n(v.row(r), width, 0.0f);
      return;
    }
    out.placed[r] = 1;
    for (int g = 0; g < shape.G; ++g) {
      load(*rows.kv, rows.layer, placed, g, k.row(r) + g * shape.E, v.row(r) + g * shape.E);
    }
    for (int64_t i = 0; i < width; ++i) {
      k.row(r)[i] = rows.k.row(r)[i] - k.row(r)[i];
      v.row(r)[i] = rows.v.row(r)[i] - v.row(r)[i];
    }
    for (int g = 0; g < shape.G; ++g) rotate_back(rope, table[pos].data(), k.row(r) + g * shape.E);
  });
}

void CarryPass::keep(const FreshRows& rows, std::span<const uint8_t> heads) const {
  if (std::ranges::find(heads, uint8_t{1}) == heads.end()) return;
  const KvShape& shape = rows.kv->shape();
  pool_.parallel_for(static_cast<int64_t>(rows.pos.size()), [&](int64_t r, int) {
    const auto placed = rows.kv->placed(rows.layer, rows.pos[r]);
    if (!placed.pages) return;
    for (int g = 0; g < shape.G; ++g) {
      if (!heads[g]) continue;
      load(*rows.kv, rows.layer, placed, g, rows.k.row(r) + g * shape.E, rows.v.row(r) + g * shape.E);
    }
  });
}

namespace {

// x = share x + (1 - share) old.
void mix_rows(const Fate& fate, std::span<const float> old, std::span<float> x) {
  double share = fate.share;
  if (fate.by_cosine) {
    double dot = 0, xx = 0, oo = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      dot += double{x[i]} * old[i];
      xx += double{x[i]} * x[i];
      oo += double{old[i]} * old[i];
    }
    share = xx > 0 && oo > 0 ? std::clamp(dot / std::sqrt(xx * oo), 0.0, 1.0) : 1;
  }
  const auto to_new = static_cast<float>(share), to_old = static_cast<float>(1 - share);
  for (size_t i = 0; i < x.size(); ++i) x[i] = to_new * x[i] + to_old * old[i];
}

}  // namespace

void CarryPass::mix_with_placed(const FreshRows& rows, const Fate& fate) const {
  const KvShape& shape = rows.kv->shape();
  const auto width = static_cast<size_t>(shape.G * shape.E);
  pool_.parallel_for(static_cast<int64_t>(rows.pos.size()), [&](int64_t r, int) {
    const auto placed = rows.kv->placed(rows.layer, rows.pos[r]);
    if (!placed.pages) return;
    std::vector<float> k(width), v(width);
    for (int g = 0; g < shape.G; ++g)
      load(*rows.kv, rows.layer, placed, g, k.data() + g * shape.E, v.data() + g * shape.E);
    mix_rows(fate, k, {rows.k.row(r), width});
    mix_rows(fate, v, {rows.v.row(r), width});
  });
}

namespace {

// The layers whose keys say what a token is: a quarter, half and three quarters up. It matters little which layers, and
// whether keys or values (docs/math/carry.md).
std::vector<int> content_layers(int L) { return {L / 4, L / 2, 3 * L / 4}; }

// Indices into `pos` (rising) of what is in the group's parts.
std::vector<int64_t> rows_of(const CarryGroup& group, std::span<const int32_t> pos) {
  std::vector<int64_t> out;
  for (const Run& part : group.parts) {
    const auto first = std::lower_bound(pos.begin(), pos.end(), part.begin);
    for (auto at = first; at != pos.end() && *at < part.end; ++at) out.push_back(at - pos.begin());
  }
  return out;
}

// Centres every column of x and divides it by its standard deviation and by sqrt(columns): then squares of differences
// add up to the mean square in units of the spread.
void standardize(Mat<float> x) {
  std::vector<double> sum(static_cast<size_t>(x.cols)), square(static_cast<size_t>(x.cols));
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t c = 0; c < x.cols; ++c) {
      const double e = x.row(i)[c];
      sum[c] += e;
      square[c] += e * e;
    }
  }
  for (int64_t c = 0; c < x.cols; ++c) {
    const double mean = sum[c] / static_cast<double>(x.rows);
    const double variance = square[c] / static_cast<double>(x.rows) - mean * mean;
    const double scale = variance > 1e-12 ? 1 / std::sqrt(variance * static_cast<double>(x.cols)) : 0;
    for (int64_t i = 0; i < x.rows; ++i) {
      float& e = x.row(i)[c];
      e = static_cast<float>((e - mean) * scale);
    }
  }
}

// Squared distances of the rows of x to its first n, as a mean over the columns: rows x n.
std::vector<float> squared_distances(const Backend& backend, Mat<const float> x, int64_t n) {
  FloatMat first_memory;
  const Mat<float> first = first_memory.reshape(x.cols, n);  // transposed
  std::vector<float> out(static_cast<size_t>(x.rows * n)), square(static_cast<size_t>(x.rows));
  for (int64_t i = 0; i < x.rows; ++i) {
    double sum = 0;
    for (int64_t c = 0; c < x.cols; ++c) {
      const float e = x.row(i)[c];
      sum += double{e} * e;
      if (i < n) first.row(c)[i] = e;
    }
    square[i] = static_cast<float>(sum);
  }
  const Mat<float> products(out.data(), x.rows, n);
  backend.mix(x, first, products);
  for (int64_t i = 0; i < x.rows; ++i) {
    float* d = products.row(i);
    for (int64_t j = 0; j < n; ++j) d[j] = std::max(0.0f, square[i] + square[j] - 2 * d[j]);
  }
  return out;
}

}  // namespace

struct CarryPass::Group {
  const CarryWeights* weights = nullptr;
  std::vector<int64_t> rows;          // of the sources
  FloatMat change;                    // n x 2 G E: K's, then V's; no rows below the carry's first layer
  std::vector<CarryState::Fit> fits;  // of this group only; then gain holds what its layer's fits give
  std::vector<float> gain;            // 2 G
};

// Weights of some groups, which serve the layers to come. Returns the operations of the contents' distances and adds
// the bytes read for them.
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
        bytes += all * static_cast<double>(shape.G * shape.row_bytes());  // keys only
      }
    }
  }
  pool_.parallel_for(static_cast<int64_t>(which.size()), [&](int64_t w, int) {
    CarryWeights& weights = state.weights_[which[w]];
    std::vector<float> distance;
    if (carry.kernel == Carry::Kernel::kContent) {
      FloatMat contents;
      read_contents(kv, weights, contents);
      distance = squared_distances(model_.backend(), contents.view(), static_cast<int64_t>(weights.sources.size()));
    }
    weigh(carry, carry.groups[which[w]], distance, weights);
  });
  return flops;
}

// out = what is placed at (sources, then targets): a row for each, the keys of the content layers rotated back to
// position 0; then standardized.
void CarryPass::read_contents(const PageTable& kv, const CarryWeights& group, FloatMat& out) const {
  const KvShape& shape = kv.shape();
  const std::vector<int> layers = content_layers(shape.L);
  const auto n = static_cast<int64_t>(group.sources.size()), all = n + static_cast<int64_t>(group.targets.size());
  const Mat<float> x = out.reshape(all, static_cast<int64_t>(layers.size()) * shape.G * shape.E);
  for (int64_t i = 0; i < all; ++i) {
    const int32_t pos = i < n ? group.sources[i] : group.targets[i - n];
    float* k = x.row(i);
    for (const int layer : layers) {
      const auto placed = kv.placed(layer, pos);
      CHECK(placed.pages);
      const float* angles = angles_[kv.ropes().kind(layer)][pos].data();
      for (int g = 0; g < shape.G; ++g, k += shape.E) {
        load(kv, layer, placed, g, k, nullptr);
        rotate_back(kv.ropes().at(layer), angles, k);
      }
    }
  }
  standardize(x);
}

// The carry's groups that have rows here, weighed.
std::vector<CarryPass::Group> CarryPass::groups_of(const Carry& carry, const Runs& written, const FreshRows& rows,
                                                   CarryState& state, Cost& cost) {
  std::vector<Group> groups;
  std::vector<size_t> unweighed;  // indices of carry.groups
  const KvShape& shape = rows.kv->shape();
  state.weights_.resize(carry.groups.size());
  const auto before = [&](const CarryGroup& group) { return rows.pos.empty() || group.range().end <= rows.pos[0]; };
  const auto first = std::ranges::partition_point(carry.groups, before);
  for (auto i = static_cast<size_t>(first - carry.groups.begin()); i < carry.groups.size(); ++i) {
    if (carry.groups[i].range().begin > rows.pos.back()) break;
    std::vector<int64_t> sources = rows_of(carry.groups[i], rows.pos);
    if (sources.empty()) continue;
    CarryWeights& weights = state.weights_[i];
    const auto at = [&](int64_t row, int32_t pos) { return rows.pos[row] == pos; };
    if (!std::ranges::equal(sources, weights.sources, at)) {
      weights = carry_positions(carry.groups[i], written);
      if (weights.sources.empty()) continue;
      CHECK(std::ranges::equal(sources, weights.sources, at));
      unweighed.push_back(i);
    }
    const auto n = static_cast<double>(sources.size()), m = static_cast<double>(weights.targets.size());
    cost.flops += 4.0 * (m + (carry.gain ? n : 0)) * n * shape.G * shape.E;
    cost.bytes += 4.0 * m * static_cast<double>(shape.G * shape.row_bytes());
    need_angles(*rows.kv, rows.layer, weights.targets);
    groups.push_back({&weights, std::move(sources), {}, {}, {}});
  }
  if (!unweighed.empty()) cost.flops += weigh_all(carry, unweighed, *rows.kv, state, cost.bytes);
  return groups;
}

CarryPass::Cost CarryPass::carry(const Carry& carry, const Runs& written, const FreshRows& rows, const Changes& changes,
                                 CarryState& state) {
  Cost cost;
  std::vector<Group> groups = groups_of(carry, written, rows, state, cost);
  const auto each = [&](auto&& step) {
    pool_.parallel_for(static_cast<int64_t>(groups.size()), [&](int64_t i, int) { step(groups[i]); });
  };
  if (rows.layer >= carry.layer_begin) {
    each([&](Group& group) {
      gather(changes, group);
      if (carry.gain) predict(rows, group);
    });
  }
  const int G = rows.kv->shape().G;
  state.fits_.resize(static_cast<size_t>(rows.kv->shape().L));
  std::vector<CarryState::Fit>& fits = state.fits_[rows.layer];
  fits.resize(static_cast<size_t>(2 * G));
  for (Group& group : groups) {  // in order: a group's gain comes from itself and those before it
    group.gain.assign(static_cast<size_t>(2 * G), 1);
    for (size_t i = 0; i < group.fits.size(); ++i) {
      fits[i].product += group.fits[i].product;
      fits[i].square += group.fits[i].square;
      group.gain[i] = fits[i].gain();
    }
  }
  each([&](Group& group) { mend(group, carry, rows); });
  return cost;
}

void CarryPass::gather(const Changes& changes, Group& group) {
  const int64_t width = changes.k.view().cols;
  const auto n = static_cast<int64_t>(group.rows.size());
  const Mat<float> to = group.change.reshape(n, 2 * width);
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(changes.k.view().row(group.rows[i]), width, to.row(i));
    std::copy_n(changes.v.view().row(group.rows[i]), width, to.row(i) + width);
  }
}

// How well every recomputed position's change follows from the others'.
void CarryPass::predict(const FreshRows& rows, Group& group) const {
  const KvShape& shape = rows.kv->shape();
  const Mat<float> change = group.change.view();
  FloatMat memory;
  const Mat<float> predicted = memory.reshape(change.rows, change.cols);
  model_.backend().mix({group.weights->left_out.data(), change.rows, change.rows}, change, predicted);
  group.fits.resize(static_cast<size_t>(2 * shape.G));
  for (int64_t i = 0; i < change.rows; ++i) {
    for (int64_t f = 0; f < std::ssize(group.fits); ++f)
      group.fits[f].add(predicted.row(i) + f * shape.E, change.row(i) + f * shape.E, shape.E);
  }
}

namespace {

float share_of(const std::vector<float>& share, int32_t pos) { return share.empty() ? 1 : share[pos]; }

}  // namespace

// Writes every target's private copy: what was placed, and what it takes over.
void CarryPass::mend(const Group& group, const Carry& carry, const FreshRows& rows) const {
  const KvShape& shape = rows.kv->shape();
  const CarryWeights& weights = *group.weights;
  const auto n = static_cast<int64_t>(weights.sources.size()), m = static_cast<int64_t>(weights.targets.size());
  const int64_t width = int64_t{shape.G} * shape.E;
  const LayerRopes ropes = rows.kv->ropes();
  const RopeConfig& rope = ropes.at(rows.layer);
  const auto& table = angles_[ropes.kind(rows.layer)];
  const Mat<float> change = group.change.view();
  const bool changes_here = change.rows > 0;
  FloatMat sum_memory;
  const Mat<float> sum = sum_memory.reshape(changes_here ? m : 0, 2 * width);
  if (changes_here) model_.backend().mix({weights.w.data(), m, n}, change, sum);
  std::vector<float> k(static_cast<size_t>(width)), v(static_cast<size_t>(width));
  for (int64_t u = 0; u < m; ++u) {
    const int32_t pos = weights.targets[u];
    const auto placed = rows.kv->placed(rows.layer, pos);
    CHECK(placed.pages);
    for (int g = 0; g < shape.G; ++g) {
      float *kg = k.data() + g * shape.E, *vg = v.data() + g * shape.E;
      load(*rows.kv, rows.layer, placed, g, kg, vg);
      if (!changes_here) continue;
      float *dk = sum.row(u) + g * shape.E, *dv = dk + width;
      rotate(rope, table[pos].data(), dk);
      const float gain_k = share_of(carry.share_k, pos) * carry.scale_k * group.gain[g];
      const float gain_v = share_of(carry.share_v, pos) * carry.scale_v * group.gain[shape.G + g];
      for (int e = 0; e < shape.E; ++e) {
        kg[e] += gain_k * dk[e];
        vg[e] += gain_v * dv[e];
      }
    }
    rows.kv->write(rows.layer, pos, k.data(), v.data());
  }
}

}  // namespace kvilt
