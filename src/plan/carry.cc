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

void gaussian(double width, CarryWeights& out) {
  const auto n = static_cast<int64_t>(out.sources.size()), m = static_cast<int64_t>(out.targets.size());
  const auto k = [width](int32_t p, int32_t q) {
    const double d = p - q;
    return 1 + std::exp(-d * d / (2 * width * width));
  };
  std::vector<double> a(static_cast<size_t>(n * n)), b(static_cast<size_t>(n * m));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) a[i * n + j] = k(out.sources[i], out.sources[j]) + (i == j ? 1 : 0);
    for (int64_t u = 0; u < m; ++u) b[i * m + u] = k(out.sources[i], out.targets[u]);
  }
  solve(a, n, b, m);  // (k(S, S) + I)^-1 k(S, U), the transposed weights
  for (int64_t u = 0; u < m; ++u) {
    for (int64_t i = 0; i < n; ++i) out.w[u * n + i] = static_cast<float>(b[i * m + u]);
  }
}

void nearest(CarryWeights& out) {
  const size_t n = out.sources.size(), some = std::min<size_t>(4, n);
  const double each = static_cast<double>(n) / static_cast<double>(n + 1) / static_cast<double>(some);
  std::vector<size_t> order(n);
  for (size_t u = 0; u < out.targets.size(); ++u) {
    for (size_t i = 0; i < n; ++i) order[i] = i;
    const auto distance = [&](size_t i) { return std::abs(out.sources[i] - out.targets[u]); };
    std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(some), order.end(), [&](size_t i, size_t j) {
      return distance(i) < distance(j) || (distance(i) == distance(j) && i < j);
    });
    for (size_t i = 0; i < some; ++i) out.w[u * n + order[i]] = static_cast<float>(each);
  }
}

}  // namespace

CarryWeights carry_weights(const Carry& carry, Run group, const Runs& written) {
  CarryWeights out;
  out.sources = positions(intersect(written, Runs{group}));
  out.targets = positions(subtract(Runs{group}, written));
  if (out.sources.empty() || out.targets.empty()) return {};
  const size_t n = out.sources.size();
  out.w.assign(out.targets.size() * n, carry.kernel == Carry::Kernel::kMean ? 1.0f / static_cast<float>(n + 1) : 0);
  if (carry.kernel == Carry::Kernel::kGaussian) gaussian(carry.width, out);
  if (carry.kernel == Carry::Kernel::kNearest) nearest(out);
  return out;
}

}  // namespace kvilt
