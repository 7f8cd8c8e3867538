#include "plan/carry.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvilt {
namespace {

// Solves A X = B in place for symmetric positive definite A (n x n); B is n x m, row by row.
void solve(std::vector<double>& a, int64_t n, std::vector<double>& b, int64_t m) {
  for (int64_t j = 0; j < n; ++j) {  // A = C C^T, C in the lower half
    for (int64_t k = 0; k < j; ++k) a[j * n + j] -= a[j * n + k] * a[j * n + k];
    CHECK(a[j * n + j] > 0);
    a[j * n + j] = std::sqrt(a[j * n + j]);
    for (int64_t i = j + 1; i < n; ++i) {
      double sum = a[i * n + j];
      for (int64_t k = 0; k < j; ++k) sum -= a[i * n + k] * a[j * n + k];
      a[i * n + j] = sum / a[j * n + j];
    }
  }
  const auto subtract_row = [&](int64_t from, double times, int64_t to) {
    for (int64_t c = 0; c < m; ++c) b[to * m + c] -= times * b[from * m + c];
  };
  const auto divide_row = [&](int64_t row) {
    for (int64_t c = 0; c < m; ++c) b[row * m + c] /= a[row * n + row];
  };
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < i; ++k) subtract_row(k, a[i * n + k], i);
    divide_row(i);
  }
  for (int64_t i = n; i-- > 0;) {
    for (int64_t k = i + 1; k < n; ++k) subtract_row(k, a[k * n + i], i);
    divide_row(i);
  }
}

void gaussian(const Carry& carry, CarryWeights& out) {
  const auto n = static_cast<int64_t>(out.sources.size()), m = static_cast<int64_t>(out.targets.size());
  const double width = carry.width, noise = carry.noise;
  const auto k = [width](int32_t p, int32_t q) {
    const double d = p - q;
    return 1 + std::exp(-d * d / (2 * width * width));
  };
  const int64_t columns = m + n;  // k(S, U), then the identity
  std::vector<double> a(static_cast<size_t>(n * n)), b(static_cast<size_t>(n * columns));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) a[i * n + j] = k(out.sources[i], out.sources[j]) + (i == j ? noise : 0);
    for (int64_t u = 0; u < m; ++u) b[i * columns + u] = k(out.sources[i], out.targets[u]);
    b[i * columns + m + i] = 1;
  }
  solve(a, n, b, columns);  // H k(S, U), the transposed weights, and H
  for (int64_t i = 0; i < n; ++i) {
    const double* row = b.data() + i * columns;
    for (int64_t u = 0; u < m; ++u) out.w[u * n + i] = static_cast<float>(row[u]);
    for (int64_t j = 0; j < n; ++j) out.left_out[i * n + j] = i == j ? 0 : static_cast<float>(-row[m + j] / row[m + i]);
  }
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

CarryWeights carry_weights(const Carry& carry, Run group, const Runs& written) {
  CarryWeights out;
  out.sources = positions(intersect(written, Runs{group}));
  out.targets = positions(subtract(Runs{group}, written));
  if (out.sources.empty() || out.targets.empty()) return {};
  const size_t n = out.sources.size();
  const double noise = carry.noise, all = static_cast<double>(n), others = all - 1;
  out.w.assign(out.targets.size() * n, 0);
  out.left_out.assign(n * n, 0);
  switch (carry.kernel) {
    case Carry::Kernel::kMean:
      std::fill(out.w.begin(), out.w.end(), static_cast<float>(1 / (all + noise)));
      std::fill(out.left_out.begin(), out.left_out.end(), static_cast<float>(1 / (others + noise)));
      for (size_t i = 0; i < n; ++i) out.left_out[i * n + i] = 0;
      break;
    case Carry::Kernel::kGaussian:
      gaussian(carry, out);
      break;
    case Carry::Kernel::kNearest:
      for (size_t u = 0; u < out.targets.size(); ++u) {
        nearest(out.sources, out.targets[u], n, all / (all + noise), out.w.data() + u * n);
      }
      for (size_t i = 0; i < n; ++i) {
        nearest(out.sources, out.sources[i], i, others / (others + noise), out.left_out.data() + i * n);
      }
      break;
  }
  return out;
}

}  // namespace kvilt
