#include "eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/check.h"

namespace kvilt {
namespace {

constexpr int kResamples = 2000;
constexpr uint64_t kSeed = 20240817;

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

std::optional<Estimate> mean_with_interval(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  Estimate out{mean_of(values), 0, 0, static_cast<int>(values.size())};
  std::mt19937_64 rng(kSeed);
  std::vector<double> means(kResamples);
  for (double& mean : means) {
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) sum += values[rng() % values.size()];
    mean = sum / static_cast<double>(values.size());
  }
  std::sort(means.begin(), means.end());
  out.low = means[static_cast<size_t>(0.025 * kResamples)];
  out.high = means[static_cast<size_t>(0.975 * kResamples) - 1];
  return out;
}

std::optional<Estimate> paired_ratio(const std::vector<double>& a, const std::vector<double>& b, double floor) {
  CHECK(a.size() == b.size());
  std::vector<double> logs;
  for (size_t i = 0; i < a.size(); ++i) logs.push_back(std::log((a[i] + floor) / (b[i] + floor)));
  auto out = mean_with_interval(logs);
  if (out) *out = {std::exp(out->mean), std::exp(out->low), std::exp(out->high), out->n};
  return out;
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

}  // namespace kvilt
