#include "plan/lines.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <utility>

#include "base/check.h"

namespace kvilt {
namespace {

struct Line {
  int32_t at = 0;
  bool column = false;
  double sum = 0, largest = 0;  // of the sample's weights along it: all of them, one of them
  int64_t cells = 0;            // of the rows to come
};

int32_t distances_of(int32_t keys, int32_t tile) { return (keys + tile - 1) / tile; }

// How many of `rows` are at distance `at` or further, in tiles, times the keys that each of them has there.
int64_t cells_of(int32_t at, Run rows, int32_t tile) {
  if (at == 0) {
    const auto before = [tile](int64_t n) {
      return n / tile * (tile * (tile + 1) / 2) + n % tile * (n % tile + 1) / 2;
    };
    return before(rows.end) - before(rows.begin);
  }
  return int64_t{tile} * std::max(0, rows.end - std::max(rows.begin, at * tile));
}

// All lines of the sample: columns 0 .. keys - 1, then distances from 0 on.
std::vector<Line> all_lines(const LineSample& sample, Run rows, int32_t tile) {
  const int32_t distances = distances_of(sample.keys, tile);
  std::vector<Line> out(static_cast<size_t>(sample.keys + distances));
  for (int32_t at = 0; at < sample.keys; ++at)
    out[at] = {at, true, 0, 0, std::max(0, rows.end - std::max(rows.begin, at))};
  for (int32_t at = 0; at < distances; ++at) out[sample.keys + at] = {at, false, 0, 0, cells_of(at, rows, tile)};
  for (size_t r = 0; r < sample.rows.size(); ++r) {
    const float* w = sample.weights.data() + r * static_cast<size_t>(sample.keys);
    const int32_t row = sample.rows[r] / tile;
    for (int32_t j = 0; j <= sample.rows[r]; ++j) {
      for (Line* line : {&out[j], &out[sample.keys + row - j / tile]}) {
        line->sum += w[j];
        line->largest = std::max<double>(line->largest, w[j]);
      }
    }
  }
  return out;
}

Lines lines_of(std::span<const Line> chosen, int32_t tile) {
  Lines out;
  out.tile = tile;
  for (const Line& line : chosen) (line.column ? out.columns : out.distances).push_back(line.at);
  out.distances.push_back(0);
  for (auto* list : {&out.columns, &out.distances}) {
    std::ranges::sort(*list);
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  return out;
}

double total(const LineSample& sample) { return std::accumulate(sample.weights.begin(), sample.weights.end(), 0.0); }

// As printed, with a gain below 0 taken as 0 and a length below 1 as 1: both are missing there.
ChosenLines printed(const LineSample& sample, std::vector<Line> lines, const LineOptions& options) {
  const auto middle = lines.begin() + sample.keys;
  std::ranges::stable_sort(lines.begin(), middle, std::greater(), &Line::sum);
  std::ranges::stable_sort(middle, lines.end(), std::greater(), &Line::sum);
  auto column = lines.begin(), distance = middle;
  std::vector<Line> chosen;
  double sum = 0, in_columns = 0, in_distances = 0;  // the most that one line of the other kind can share with these
  int64_t columns = 0, distances = 0;
  const double wanted = options.mass * total(sample);
  const auto each = [](double gain, int64_t cells, int64_t shared) {
    return gain / static_cast<double>(std::max<int64_t>(1, cells - shared));
  };
  while (sum < wanted && (column != middle || distance != lines.end())) {
    const double gain_column = column == middle ? -1 : std::max(0.0, column->sum - in_distances);
    const double gain_distance = distance == lines.end() ? -1 : std::max(0.0, distance->sum - in_columns);
    const bool take_distance =
        column == middle || (distance != lines.end() && each(gain_distance, distance->cells, columns) >=
                                                            each(gain_column, column->cells, distances));
    if (take_distance) {
      in_distances += distance->largest;
      sum += gain_distance;
      ++distances;
      chosen.push_back(*distance++);
    } else {
      in_columns += column->largest;
      sum += gain_column;
      ++columns;
      chosen.push_back(*column++);
    }
  }
  return {lines_of(chosen, options.tile), sum / std::max(total(sample), 1e-300)};
}

// The share of the sample's attention that the first n lines and the rows' own distance hold, at [n].
std::vector<double> held_by_first(const LineSample& sample, std::span<const Line> lines, int32_t tile) {
  const auto none = static_cast<uint32_t>(lines.size());
  std::vector<uint32_t> column(static_cast<size_t>(sample.keys), none);
  std::vector<uint32_t> distance(static_cast<size_t>(distances_of(sample.keys, tile)), none);
  for (uint32_t n = 0; n < none; ++n) (lines[n].column ? column : distance)[lines[n].at] = n + 1;
  distance[0] = 0;
  std::vector<double> out(lines.size() + 2);  // the last: what no line holds
  for (uint32_t& n : column) n = n == none ? none + 1 : n;
  for (uint32_t& n : distance) n = n == none ? none + 1 : n;
  for (size_t r = 0; r < sample.rows.size(); ++r) {
    const float* w = sample.weights.data() + r * static_cast<size_t>(sample.keys);
    for (int32_t j = 0; j <= sample.rows[r]; ++j)
      out[std::min(column[j], distance[sample.rows[r] / tile - j / tile])] += w[j];
  }
  std::partial_sum(out.begin(), out.end(), out.begin());
  const double all = out.back();
  out.pop_back();
  for (double& held : out) held = all > 0 ? held / all : 1;
  return out;
}

ChosenLines shortest(const LineSample& sample, std::vector<Line> lines, const LineOptions& options) {
  std::erase_if(lines, [](const Line& line) { return line.sum <= 0; });
  const auto by_cell = [](const Line& line) {
    return line.sum / static_cast<double>(std::max<int64_t>(1, line.cells));
  };
  std::ranges::stable_sort(lines, std::greater(), by_cell);
  const std::vector<double> held = held_by_first(sample, lines, options.tile);
  const double enough = std::min(options.mass, held.back());
  const auto n = static_cast<size_t>(std::ranges::find_if(held, [&](double h) { return h >= enough; }) - held.begin());
  return {lines_of(std::span(lines).first(n), options.tile), held[n]};
}

ChosenLines above_mean(const LineSample& sample, std::vector<Line> lines, const LineOptions& options) {
  const auto N = static_cast<double>(sample.keys);
  const double rest = total(sample) - lines[0].sum - lines[static_cast<size_t>(sample.keys)].sum;
  const double mean = N > 2 ? std::max(0.0, rest) / (N - 2) : 0;
  std::erase_if(lines, [&](const Line& line) {
    const bool kept = line.at == 0;  // the first key, the rows' own
    return !kept && line.sum <= options.threshold * mean * (line.column ? 1 : options.tile);
  });
  Lines chosen = lines_of(lines, options.tile);
  const double holds = held_mass(sample, chosen);
  return {std::move(chosen), holds};
}

// The heaviest ones of each kind, with those that are always taken.
ChosenLines counted(const LineSample& sample, std::vector<Line> lines, const LineOptions& options) {
  const auto middle = lines.begin() + sample.keys;
  const auto keep = [](auto begin, auto end, int32_t always, int32_t n, std::vector<Line>& out) {
    const auto before = [always](const Line& a, const Line& b) {
      const bool first = a.at < always, second = b.at < always;
      return first != second ? first : a.sum != b.sum ? a.sum > b.sum : a.at < b.at;
    };
    const auto last = begin + std::min<int64_t>(end - begin, std::max(always, n));
    std::partial_sort(begin, last, end, before);
    out.insert(out.end(), begin, last);
  };
  std::vector<Line> chosen;
  keep(lines.begin(), middle, options.first, options.columns, chosen);
  keep(middle, lines.end(), options.nearest, options.distances, chosen);
  Lines out = lines_of(chosen, options.tile);
  const double holds = held_mass(sample, out);
  return {std::move(out), holds};
}

// Of each kind the heaviest, until these hold the share, and at least so many.
ChosenLines covering(const LineSample& sample, std::vector<Line> lines, const LineOptions& options) {
  const auto middle = lines.begin() + sample.keys;
  const double wanted = options.mass * total(sample);
  std::vector<Line> chosen;
  for (const auto& [begin, end] : {std::pair(lines.begin(), middle), std::pair(middle, lines.end())}) {
    std::stable_sort(begin, end, [](const Line& a, const Line& b) { return a.sum > b.sum; });
    double sum = 0;
    for (auto line = begin; line != end && (sum < wanted || line - begin < options.least); ++line) {
      sum += line->sum;
      chosen.push_back(*line);
    }
  }
  Lines out = lines_of(chosen, options.tile);
  const double holds = held_mass(sample, out);
  return {std::move(out), holds};
}

}  // namespace

bool Lines::shows(int32_t i, int32_t j) const {
  return j <= i &&
         (std::ranges::binary_search(columns, j) || std::ranges::binary_search(distances, i / tile - j / tile));
}

ChosenLines choose_lines(const LineSample& sample, Run rows, const LineOptions& options) {
  CHECK(!sample.rows.empty() && sample.rows.back() < sample.keys);
  CHECK(options.rule != LineRule::kPrinted || options.tile == 1);  // its bound counts one cell of a row in a line
  CHECK(sample.weights.size() == sample.rows.size() * static_cast<size_t>(sample.keys));
  const bool by_mass = options.rule != LineRule::kThreshold && options.rule != LineRule::kCounts;
  if (by_mass && options.mass >= 1) {  // all, whatever rounding says that fewer hold
    Lines all;
    all.columns.resize(static_cast<size_t>(sample.keys));
    std::iota(all.columns.begin(), all.columns.end(), 0);
    all.distances = {0};
    return {std::move(all), 1};
  }
  std::vector<Line> lines = all_lines(sample, rows, options.tile);
  switch (options.rule) {
    case LineRule::kPrinted:
      return printed(sample, std::move(lines), options);
    case LineRule::kShortest:
      return shortest(sample, std::move(lines), options);
    case LineRule::kThreshold:
      return above_mean(sample, std::move(lines), options);
    case LineRule::kCounts:
      return counted(sample, std::move(lines), options);
    case LineRule::kCoverage:
      return covering(sample, std::move(lines), options);
  }
  return {};
}

Lines random_lines(int32_t keys, int32_t tile, double share, uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto most = static_cast<uint64_t>(share / 2 * 1e6);
  Lines out{{0}, {0}, tile};
  for (int32_t at = 1; at < keys; ++at) {
    if (rng() % 1000000 < most) out.columns.push_back(at);
  }
  for (int32_t at = 1; at < distances_of(keys, tile); ++at) {
    if (rng() % 1000000 < most) out.distances.push_back(at);
  }
  return out;
}

double held_mass(const LineSample& sample, const Lines& lines) {
  double held = 0, all = 0;
  std::vector<uint8_t> column(static_cast<size_t>(sample.keys)), distance(column);
  for (const int32_t j : lines.columns) column[j] = 1;
  for (const int32_t s : lines.distances) distance[s] = 1;
  for (size_t r = 0; r < sample.rows.size(); ++r) {
    const float* w = sample.weights.data() + r * static_cast<size_t>(sample.keys);
    for (int32_t j = 0; j <= sample.rows[r]; ++j) {
      all += w[j];
      if (column[j] || distance[sample.rows[r] / lines.tile - j / lines.tile]) held += w[j];
    }
  }
  return all > 0 ? held / all : 1;
}

}  // namespace kvilt
