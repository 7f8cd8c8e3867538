#include "plan/carry.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvilt {
namespace {

// Solves A X = B in place for symmetric positive definite A (n x n); B is n x m, row by row. False: A is not; it comes
// from the model's keys, which may hold anything.
bool solve(std::vector<double>& a, int64_t n, std::vector<double>& b, int64_t m) {
  for (int64_t j = 0; j < n; ++j) {  // A = C C^T, C in the lower half
    for (int64_t k = 0; k < j; ++k) a[j * n + j] -= a[j * n + k] * a[j * n + k];
    if (!(a[j * n + j] > 0 && std::isfinite(a[j * n + j]))) return false;
    a[j * n + j] = std::sqrt(a[j * n + j]);
    for (int64_t i = j + 1; i < n; ++i) {
      double sum = a[i * n + j];
      for (int64_t k = 0; k < j; ++k) sum -= a[i * n + k] * a[j * n + k];
      a[i * n + j] = sum / a[j * n + j];
    }
  }
  // b[to] -= sum_k a(k) b[k] over [begin, end): four rows at a time, since a pass over b[to] costs more than its
  // products.
  const auto subtract_rows = [&](int64_t begin, int64_t end, int64_t to, const auto& times) {
    double* out = b.data() + to * m;
    int64_t k = begin;
    for (; k + 4 <= end; k += 4) {
      const double t0 = times(k), t1 = times(k + 1), t2 = times(k + 2), t3 = times(k + 3);
      const double *b0 = b.data() + k * m, *b1 = b0 + m, *b2 = b1 + m, *b3 = b2 + m;
      for (int64_t c = 0; c < m; ++c) out[c] -= t0 * b0[c] + t1 * b1[c] + t2 * b2[c] + t3 * b3[c];
    }
    for (; k < end; ++k) {
      for (int64_t c = 0; c < m; ++c) out[c] -= times(k) * b[k * m + c];
    }
    for (int64_t c = 0; c < m; ++c) out[c] /= a[to * n + to];
  };
  for (int64_t i = 0; i < n; ++i) subtract_rows(0, i, i, [&](int64_t k) { return a[i * n + k]; });
  for (int64_t i = n; i-- > 0;) subtract_rows(i + 1, n, i, [&](int64_t k) { return a[k * n + i]; });
  return true;
}

// kMean's weights.
void mean(double noise, CarryWeights& out) {
  const auto n = static_cast<double>(out.sources.size());
  std::ranges::fill(out.w, static_cast<float>(1 / (n + noise)));
  std::ranges::fill(out.left_out, static_cast<float>(1 / (n - 1 + noise)));
  for (size_t i = 0; i < out.sources.size(); ++i) out.left_out[i * out.sources.size() + i] = 0;
}

// w and left_out of a kernel regression; k(i, j): of sources i < n, then targets, with source j. Where that has no
// solution, the mean.
template <typename K>
void regress(const K& k, double noise, CarryWeights& out) {
  const auto n = static_cast<int64_t>(out.sources.size()), m = static_cast<int64_t>(out.targets.size());
  const int64_t columns = m + n;  // k(S, U), then the identity
  std::vector<double> a(static_cast<size_t>(n * n)), b(static_cast<size_t>(n * columns));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) a[i * n + j] = k(i, j) + (i == j ? noise : 0);
    for (int64_t u = 0; u < m; ++u) b[i * columns + u] = k(n + u, i);
    b[i * columns + m + i] = 1;
  }
  if (!solve(a, n, b, columns)) return mean(noise, out);  // else H k(S, U), the transposed weights, and H
  for (int64_t i = 0; i < n; ++i) {
    const double* row = b.data() + i * columns;
    for (int64_t u = 0; u < m; ++u) out.w[u * n + i] = static_cast<float>(row[u]);
    for (int64_t j = 0; j < n; ++j) out.left_out[i * n + j] = i == j ? 0 : static_cast<float>(-row[m + j] / row[m + i]);
  }
}

// The part of the group that holds each source, then each target.
std::vector<size_t> parts_of(const CarryGroup& group, const CarryWeights& of) {
  std::vector<size_t> out;
  for (const auto* positions : {&of.sources, &of.targets}) {
    size_t part = 0;
    for (const int32_t pos : *positions) {
      while (group.parts[part].end <= pos) ++part;
      out.push_back(part);
    }
  }
  return out;
}

// kGaussian and kContent.
void kernel_regression(const Carry& carry, const CarryGroup& group, std::span<const float> distance,
                       CarryWeights& out) {
  const auto n = static_cast<int64_t>(out.sources.size());
  const std::vector<size_t> part = parts_of(group, out);
  const auto together = [&](int64_t i, int64_t j) { return part[i] == part[j]; };
  const auto near = [&, width = double{carry.width}](int64_t i, int64_t j) {
    if (!together(i, j)) return 0.0;
    const double d = (i < n ? out.sources[i] : out.targets[i - n]) - out.sources[j];
    return 1 + std::exp(-d * d / (2 * width * width));
  };
  if (carry.kernel == Carry::Kernel::kGaussian) return regress(near, carry.noise, out);
  CHECK(distance.size() == part.size() * out.sources.size());
  const auto both = [&, width = double{carry.content_width}](int64_t i, int64_t j) {
    const double alike = std::exp(-double{distance[i * n + j]} / (2 * width * width));
    return near(i, j) + (together(i, j) ? 2 * alike : alike);
  };
  regress(both, carry.noise, out);
}

// The mean of the (up to) 4 of `from` nearest to `pos`, lower positions first, times `shrink`; `skip` is none of them.
void nearest(const std::vector<int32_t>& from, int32_t pos, size_t skip, double shrink, float* w) {
  std::vector<size_t> order;
  for (size_t i = 0; i < from.size(); ++i) {
    if (i != skip) order.push_back(i);
  }
  const size_t some = std::min<size_t>(4, order.size());
  const auto distance = [&](size_t i) { return std::abs(from[i] - pos); };
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(some), order.end(), [&](size_t i, size_t j) {
    return distance(i) < distance(j) || (distance(i) == distance(j) && i < j);
  });
  for (size_t i = 0; i < some; ++i) w[order[i]] = static_cast<float>(shrink / static_cast<double>(some));
}

}  // namespace

CarryWeights carry_positions(const CarryGroup& group, const Runs& written) {
  CarryWeights out;
  const Runs all = group.positions();
  out.sources = positions(intersect(written, all));
  out.targets = positions(subtract(all, written));
  if (out.sources.empty() || out.targets.empty()) return {};
  return out;
}

void weigh(const Carry& carry, const CarryGroup& group, std::span<const float> distance, CarryWeights& out) {
  const size_t n = out.sources.size();
  const double noise = carry.noise, all = static_cast<double>(n), others = all - 1;
  out.w.assign(out.targets.size() * n, 0);
  out.left_out.assign(n * n, 0);
  switch (carry.kernel) {
    case Carry::Kernel::kMean:
      CHECK(group.parts.size() == 1);
      mean(noise, out);
      break;
    case Carry::Kernel::kGaussian:
    case Carry::Kernel::kContent:
      kernel_regression(carry, group, distance, out);
      break;
    case Carry::Kernel::kNearest:
      CHECK(group.parts.size() == 1);
      for (size_t u = 0; u < out.targets.size(); ++u) {
        nearest(out.sources, out.targets[u], n, all / (all + noise), out.w.data() + u * n);
      }
      for (size_t i = 0; i < n; ++i) {
        nearest(out.sources, out.sources[i], i, others / (others + noise), out.left_out.data() + i * n);
      }
      break;
  }
}

}  // namespace kvilt
