// eval/statistics.h: means and ratios with bootstrap intervals. Percentile bootstrap over cases, 95 %, seeded: the same
// values give the same interval.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace kvilt {

struct Estimate {
  double mean = 0, low = 0, high = 0;
  int n = 0;
};

// Empty for no values; low = high = mean for one.
std::optional<Estimate> mean_with_interval(const std::vector<double>& values);

// Geometric mean of (a_i + floor) / (b_i + floor), paired by case: what heavy-tailed distances are compared with.
// Differences below the floor of 0.001 nats do not matter.
std::optional<Estimate> paired_ratio(const std::vector<double>& a, const std::vector<double>& b, double floor = 0.001);

// q from 0 to 1; between two values the line that joins them. 0 for no values.
double quantile(std::vector<double> values, double q);
inline double median_of(std::vector<double> values) { return quantile(std::move(values), 0.5); }

}  // namespace kvilt
