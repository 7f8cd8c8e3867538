#include "plan/lines.h"

#include <algorithm>
#include <cmath>
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
  double sum = 0;      // of the sample's weights along it
  int64_t cells = 0;   // of the rows to come
  double largest = 0;  // of these weights; for kPrinted only
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

// All lines of the sample: columns 0 .. keys - 1, then distances from 0 on. The sums are made apart from the lines: the
// loop over columns, and the one over distances of positions, are vectors then.
std::vector<Line> all_lines(const LineSample& sample, Run rows, int32_t tile) {
  const int32_t distances = distances_of(sample.keys, tile);
  std::vector<double> by_column(static_cast<size_t>(sample.keys)), by_distance(static_cast<size_t>(distances));
  for (size_t r = 0; r < sample.rows.size(); ++r) {
    const float* w = sample.row(r);
    const int32_t pos = sample.rows[r];
    for (int32_t j = 0; j <= pos; ++j) by_column[j] += w[j];
    if (tile == 1) {
      for (int32_t at = 0; at <= pos; ++at) by_distance[at] += w[pos - at];
    } else {
      for (int32_t j = 0; j <= pos; ++j) by_distance[pos / tile - j / tile] += w[j];
    }
  }
  std::vector<Line> out(static_cast<size_t>(sample.keys + distances));
  for (int32_t at = 0; at < sample.keys; ++at)
    out[at] = {at, true, by_column[at], std::max(0, rows.end - std::max(rows.begin, at))};
  for (int32_t at = 0; at < distances; ++at)
    out[sample.keys + at] = {at, false, by_distance[at], cells_of(at, rows, tile)};
  return out;
}

void find_largest(const LineSample& sample, std::vector<Line>& lines) {
  for (size_t r = 0; r < sample.rows.size(); ++r) {
    const float* w = sample.row(r);
    for (int32_t j = 0; j <= sample.rows[r]; ++j) {
      for (Line* line : {&lines[j], &lines[sample.keys + sample.rows[r] - j]})
        line->largest = std::max<double>(line->largest, w[j]);
    }
  }
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

// Of the sample's weights. lines: all of them, the columns first.
double total(const LineSample& sample, std::span<const Line> lines) {
  double sum = 0;
  for (const Line& column : lines.first(static_cast<size_t>(sample.keys))) sum += column.sum;
  return sum;
}

// As printed, with a gain below 0 taken as 0 and a length below 1 as 1: both are missing there.
ChosenLines printed(const LineSample& sample, std::vector<Line> lines, const LineOptions& options) {
  const auto middle = lines.begin() + sample.keys;
  find_largest(sample, lines);
  std::ranges::stable_sort(lines.begin(), middle, std::greater(), &Line::sum);
  std::ranges::stable_sort(middle, lines.end(), std::greater(), &Line::sum);
  auto column = lines.begin(), distance = middle;
  std::vector<Line> chosen;
  double sum = 0, in_columns = 0, in_distances = 0;  // the most that one line of the other kind can share with these
  int64_t columns = 0, distances = 0;
  const double all = total(sample, lines), wanted = options.mass * all;
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
  return {lines_of(chosen, options.tile), sum / std::max(all, 1e-300)};
}

// The lines by falling weight, equal ones in their order. What is sorted is a third of a line's size.
std::vector<Line> falling(std::span<const Line> lines, double (*weight)(const Line&)) {
  std::vector<std::pair<double, uint32_t>> order(lines.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = {-weight(lines[i]), i};
  std::ranges::sort(order);
  std::vector<Line> out;
  out.reserve(lines.size());
  for (const auto& [negative, i] : order) out.push_back(lines[i]);
  return out;
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
    const float* w = sample.row(r);
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
  lines =
      falling(lines, [](const Line& line) { return line.sum / static_cast<double>(std::max<int64_t>(1, line.cells)); });
  const std::vector<double> held = held_by_first(sample, lines, options.tile);
  const double enough = std::min(options.mass, held.back());
  const auto n = static_cast<size_t>(std::ranges::find_if(held, [&](double h) { return h >= enough; }) - held.begin());
  return {lines_of(std::span(lines).first(n), options.tile), held[n]};
}

ChosenLines above_mean(const LineSample& sample, std::vector<Line> lines, const LineOptions& options) {
  const auto N = static_cast<double>(sample.keys);
  const double rest = total(sample, lines) - lines[0].sum - lines[static_cast<size_t>(sample.keys)].sum;
  const double mean = N > 2 ? std::max(0.0, rest) / (N - 2) : 0;
  std::erase_if(lines, [&](const Line& line) {
    const bool kept = line.at == 0;  // the first key, the rows' own
    return !kept && line.sum <= options.threshold * mean * (line.column ? 1 : options.tile);
  });
  return {lines_of(lines, options.tile), 0};
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
  return {lines_of(chosen, options.tile), 0};
}

// Of each kind the heaviest, until these hold the share, and at least so many.
ChosenLines covering(const LineSample& sample, std::span<const Line> lines, const LineOptions& options) {
  const double wanted = options.mass * total(sample, lines);
  const auto keys = static_cast<size_t>(sample.keys);
  std::vector<Line> chosen;
  for (const std::span<const Line> kind : {lines.first(keys), lines.subspan(keys)}) {
    double sum = 0;
    int32_t n = 0;
    for (const Line& line : falling(kind, [](const Line& of) { return of.sum; })) {
      if (sum >= wanted && n >= options.least) break;
      sum += line.sum;
      ++n;
      chosen.push_back(line);
    }
  }
  return {lines_of(chosen, options.tile), 0};
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
  const bool above_nothing = options.rule == LineRule::kThreshold && options.threshold <= 0;
  if ((by_mass && options.mass >= 1) || above_nothing) {  // all, whatever rounding says that fewer hold
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
      return covering(sample, lines, options);
  }
  return {};
}

Lines random_lines(int32_t keys, int32_t tile, double share, uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto most =
      static_cast<uint64_t>((1 - std::sqrt(1 - share)) * 1e6);  // a cell is in a column, a distance, or both
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
    const float* w = sample.row(r);
    for (int32_t j = 0; j <= sample.rows[r]; ++j) {
      all += w[j];
      if (column[j] || distance[sample.rows[r] / lines.tile - j / lines.tile]) held += w[j];
    }
  }
  return all > 0 ? held / all : 1;
}

}  // namespace kvilt
