// plan/lines.h: sparse attention by lines: of a KV head's matrix of attention, whole columns (keys that all rows see)
// and whole distances (keys so many positions before their row). Which of them matter is read off a few sampled rows.
// Tiles:  a distance may be one of tiles of positions, so that its cells are whole tiles of rows by keys, which is what
//         a kernel computes anyhow: 64 rows along one distance of positions touch 127 keys.
// Idea:   attention of long texts is near to such lines (MInference, arXiv:2407.02490). LoopServe (arXiv:2507.13681)
//         chooses them anew for each turn of a dialogue, from rows all over the turn, until they hold a share of the
//         attention.
// Rules:  kPrinted is LoopServe's greedy choice as printed: it counts what a line adds at least, so that its sum is a
//         lower bound of the mass, but stalls below it and then takes all lines. kShortest takes lines in the order of
//         mass per cell, and of these the shortest beginning that holds the share. kThreshold (CRISP,
//         arXiv:2609.01925) takes what is above the mean of all but the first column and the rows' own keys; it has no
//         share to reach. kCounts is MInference's vertical-slash pattern. kCoverage is FlexPrefill's
//         (arXiv:2502.20766): of the columns and of the distances each the heaviest, until they hold the share of the
//         sample's attention by their sums.
// Invariants: distance 0, a row's own key, is always among them: no row sees nothing.
// Threads: pure; any thread.
// Cost:   choosing: sampled rows x keys, twice; sorting the lines.
// Not here: which rows are sampled, and attention along lines (forward/sparse_rows.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/runs.h"

namespace kvilt {

// A row at i sees the positions j <= i with j among the columns or i / tile - j / tile among the distances. Both rise.
struct Lines {
  std::vector<int32_t> columns, distances;
  int32_t tile = 1;
  bool shows(int32_t i, int32_t j) const;
};

// Attention weights of sampled rows of one KV head, summed over its query heads: weights[r * keys + j] of the row at
// rows[r] to position j; 0 for j > rows[r]. keys > the last row.
struct LineSample {
  std::span<const int32_t> rows;  // rising
  std::span<const float> weights;
  int32_t keys = 0;

  const float* row(size_t r) const { return weights.data() + r * static_cast<size_t>(keys); }
};

enum class LineRule : uint8_t { kPrinted, kShortest, kThreshold, kCounts, kCoverage };
struct LineOptions {
  LineRule rule = LineRule::kShortest;
  int32_t tile = 1;        // of the distances
  double mass = 0.99;      // alpha: of the sample's attention; kThreshold, kCounts: unused
  double threshold = 1.0;  // kThreshold: times the mean, of a line one position wide; 0: all lines
  // kCounts (MInference): so many of the heaviest columns and distances, the first and the nearest ones among them.
  int32_t columns = 1000, distances = 6096, first = 30, nearest = 100;
  int32_t least = 0;  // kCoverage: so many columns, and so many distances, at least
};
struct ChosenLines {
  Lines lines;
  // A lower bound of the share of the sample's attention that they hold. kShortest's is exact; 0 of the rules that do
  // not ask: see held_mass().
  double bound = 0;
};

// rows: those that will attend along the lines, which is what a line costs.
ChosenLines choose_lines(const LineSample& sample, Run rows, const LineOptions& options);

// The control: columns and distances drawn evenly, so many that they hold the share of the cells on average; and distance
// 0 and column 0. share: 0 to 1, which is all.
Lines random_lines(int32_t keys, int32_t tile, double share, uint64_t seed);

// The share of the sample's attention that the lines hold.
double held_mass(const LineSample& sample, const Lines& lines);

}  // namespace kvilt
