// Lines of attention: what the rules choose, over random matrices and such in which the right lines are planted.
#include "plan/lines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>
#include <utility>

#include "plan/head_patterns.h"

namespace kvilt {
namespace {

struct Matrix {
  std::vector<int32_t> rows;
  std::vector<float> weights;
  int32_t keys = 0;
  LineSample sample() const { return {rows, weights, keys}; }
  float& at(size_t r, int32_t j) { return weights[r * static_cast<size_t>(keys) + static_cast<size_t>(j)]; }
};

// Every `step`-th row of `keys`, each with weights that add up to 1. spread: how unlike they are.
Matrix random_matrix(int32_t keys, int32_t step, double spread, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal(0, spread);
  Matrix out;
  out.keys = keys;
  for (int32_t i = keys - 1; i >= 0; i -= step) out.rows.insert(out.rows.begin(), i);
  out.weights.assign(out.rows.size() * static_cast<size_t>(keys), 0);
  for (size_t r = 0; r < out.rows.size(); ++r) {
    double sum = 0;
    std::vector<double> w;
    for (int32_t j = 0; j <= out.rows[r]; ++j) sum += w.emplace_back(std::exp(normal(rng)));
    for (int32_t j = 0; j <= out.rows[r]; ++j) out.at(r, j) = static_cast<float>(w[static_cast<size_t>(j)] / sum);
  }
  return out;
}

constexpr LineRule kRules[] = {LineRule::kPrinted, LineRule::kShortest, LineRule::kThreshold};

int64_t cells_by_hand(const Lines& lines, kvilt::Run rows) {
  int64_t cells = 0;
  for (int32_t i = rows.begin; i < rows.end; ++i) {
    for (int32_t j = 0; j <= i; ++j) cells += lines.shows(i, j) ? 1 : 0;
  }
  return cells;
}

TEST(Lines, InjectedLinesGiveExactlyTheirCells) {
  const Lines lines{{2, 5}, {0, 3}};
  EXPECT_TRUE(lines.shows(7, 2));
  EXPECT_TRUE(lines.shows(7, 4));
  EXPECT_TRUE(lines.shows(7, 7));
  EXPECT_FALSE(lines.shows(7, 3));
  EXPECT_FALSE(lines.shows(1, 2));
  EXPECT_EQ(cells_by_hand(lines, {4, 8}), 3 + 2 + 4 + 4) << "row 4 is before column 5; row 5 sees 5 and 2 twice";
  const Lines tiles{{2}, {0, 2}, 4};
  for (const auto& [i, j, seen] : std::vector<std::tuple<int, int, bool>>{{9, 8, true},
                                                                          {9, 9, true},
                                                                          {9, 10, false},
                                                                          {9, 7, false},
                                                                          {9, 3, true},
                                                                          {9, 0, true},
                                                                          {14, 3, false},
                                                                          {14, 2, true},
                                                                          {14, 4, true},
                                                                          {15, 7, true}}) {
    EXPECT_EQ(tiles.shows(i, j), seen) << i << " " << j;
  }
}

TEST(Lines, TheBoundIsALowerBound) {
  int64_t below = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Matrix matrix = random_matrix(30, 3, 0.5 + static_cast<double>(seed % 5), seed);
    for (const LineRule rule : {LineRule::kPrinted, LineRule::kShortest}) {
      const auto chosen = choose_lines(
          matrix.sample(), {0, 30},
          {rule, rule == LineRule::kPrinted || seed % 2 == 0 ? 1 : 8, 0.3 + 0.1 * static_cast<double>(seed % 7)});
      const double held = held_mass(matrix.sample(), chosen.lines);
      EXPECT_LE(chosen.bound, held + 1e-6);
      below += chosen.bound < held - 0.01 ? 1 : 0;
    }
  }
  EXPECT_GT(below, 0) << "power: the printed rule's sum is not the mass itself";
}

TEST(Lines, TheShareIsReached) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Matrix matrix = random_matrix(40, 4, 2, seed);
    for (const double mass : {0.5, 0.9, 0.99}) {
      const auto chosen = choose_lines(matrix.sample(), {0, 40}, {LineRule::kShortest, seed % 2 == 0 ? 1 : 8, mass});
      EXPECT_GE(held_mass(matrix.sample(), chosen.lines), mass - 1e-9);
      EXPECT_NEAR(held_mass(matrix.sample(), chosen.lines), chosen.bound, 1e-9);
      if (mass < 0.6) {
        EXPECT_LT(cells_by_hand(chosen.lines, {0, 40}), 820) << "power: not all";
      }
    }
  }
}

// The share that lines hold is that of the cells that they show, cell by cell, whatever chose them; no bound is above it.
TEST(Lines, WhatIsHeldIsTheSumOfTheCells) {
  int all = 0, some = 0;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    const Matrix matrix = random_matrix(30, 3, 0.5 + static_cast<double>(seed % 5), seed);
    for (const LineRule rule :
         {LineRule::kPrinted, LineRule::kShortest, LineRule::kThreshold, LineRule::kCounts, LineRule::kCoverage}) {
      LineOptions options{rule, rule == LineRule::kPrinted || seed % 2 == 0 ? 1 : 8,
                          0.3 + 0.1 * static_cast<double>(seed % 7), 0.5 * static_cast<double>(seed % 6)};
      options.columns = 3, options.distances = 2, options.first = options.nearest = 1;
      const auto chosen = choose_lines(matrix.sample(), {0, 30}, options);
      double held = 0, sum = 0;
      for (size_t r = 0; r < matrix.rows.size(); ++r) {
        for (int32_t j = 0; j <= matrix.rows[r]; ++j) {
          const double weight = matrix.sample().row(r)[j];
          sum += weight;
          held += chosen.lines.shows(matrix.rows[r], j) ? weight : 0;
        }
      }
      EXPECT_NEAR(held_mass(matrix.sample(), chosen.lines), held / sum, 1e-9) << static_cast<int>(rule);
      EXPECT_LE(chosen.bound, held / sum + 1e-6) << static_cast<int>(rule);
      (held / sum > 1 - 1e-9 ? all : some)++;
    }
  }
  EXPECT_GT(all, 0);
  EXPECT_GT(some, 100) << "power: most lines leave something out";
}

// Every column is heavier than the mean where the rows' own keys, which do not count in it, hold nearly all: dense.
// Without these, none is heavier than it.
TEST(Lines, TheThresholdKeepsAllThatIsAboveTheMean) {
  constexpr int32_t kKeys = 24;
  Matrix matrix = random_matrix(kKeys, 1, 0, 1);
  const auto cells = [&](double own, double threshold) {
    for (int32_t i = 0; i < kKeys; ++i) {
      for (int32_t j = 0; j < i; ++j) matrix.at(static_cast<size_t>(i), j) = 0.1F / static_cast<float>(kKeys - 1 - j);
      matrix.at(static_cast<size_t>(i), i) = static_cast<float>(own);
    }
    const auto chosen = choose_lines(matrix.sample(), {0, kKeys}, {LineRule::kThreshold, 1, 0, threshold});
    return cells_by_hand(chosen.lines, {0, kKeys});
  };
  const int64_t all = kKeys * (kKeys + 1) / 2;
  EXPECT_EQ(cells(1, 1), all);
  EXPECT_EQ(cells(1, 5), all);
  EXPECT_LT(cells(0, 5), all / 2) << "power";
  EXPECT_LT(cells(1, 30), all / 2) << "power";
}

// Above nothing are all lines, also those that no sampled row looks along. The higher the threshold, the fewer.
TEST(Lines, AThresholdOfNothingIsDense) {
  const int64_t all = 40 * 41 / 2;
  for (const int32_t tile : {1, 8}) {
    const auto cells = [&](const Matrix& matrix, double threshold) {
      const auto chosen = choose_lines(matrix.sample(), {0, 40}, {LineRule::kThreshold, tile, 0, threshold});
      return cells_by_hand(chosen.lines, {0, 40});
    };
    Matrix matrix = random_matrix(40, 4, 2, 13);
    int64_t before = all;
    for (const double threshold : {0.0, 0.5, 2.0, 8.0}) {
      EXPECT_LE(cells(matrix, threshold), before);
      before = cells(matrix, threshold);
    }
    EXPECT_LT(before, all / 2) << "power";
    for (size_t r = 0; r < matrix.rows.size(); ++r) {  // they look at themselves, the last one at the first key as well
      for (int32_t j = r + 1 == matrix.rows.size() ? 1 : 0; j < matrix.rows[r]; ++j) matrix.at(r, j) = 0;
    }
    EXPECT_EQ(cells(matrix, 0), all);
    EXPECT_LT(cells(matrix, 1e-6), all) << "power";
  }
}

TEST(Lines, AllOfTheMassTakesAllThatHasAny) {
  const Matrix matrix = random_matrix(24, 1, 1, 3);  // every row is sampled
  for (const LineRule rule : {LineRule::kPrinted, LineRule::kShortest}) {
    const auto chosen = choose_lines(matrix.sample(), {0, 24}, {rule, 1, 1});
    EXPECT_EQ(cells_by_hand(chosen.lines, {0, 24}), 24 * 25 / 2);
  }
}

TEST(Lines, PlantedLinesAreFound) {
  Matrix matrix = random_matrix(64, 4, 0.1, 5);
  matrix.rows.erase(matrix.rows.begin(), matrix.rows.begin() + 5);  // rows 23 .. 63 are sampled
  matrix.weights.erase(matrix.weights.begin(), matrix.weights.begin() + 5 * 64);
  for (size_t r = 0; r < matrix.rows.size(); ++r) {
    matrix.at(r, 17) += 3;
    matrix.at(r, matrix.rows[r] - 5) += 2;
  }
  const auto shortest = choose_lines(matrix.sample(), {0, 64}, {LineRule::kShortest, 1, 0.75});
  EXPECT_EQ(shortest.lines.columns, (std::vector<int32_t>{17}));
  EXPECT_TRUE(std::ranges::binary_search(shortest.lines.distances, 5));
  EXPECT_LE(shortest.lines.distances.size(), 3u);
  const auto threshold = choose_lines(matrix.sample(), {0, 64}, {LineRule::kThreshold, 1, 0, 1});
  EXPECT_TRUE(std::ranges::binary_search(threshold.lines.columns, 17));
  EXPECT_TRUE(std::ranges::binary_search(threshold.lines.distances, 5));
  // What crosses a heavy line in a sampled row looks heavy too: 11 rows, two lines. Of the rest nothing is taken.
  EXPECT_LE(threshold.lines.columns.size() + threshold.lines.distances.size(), 2u + 2 + 22);
}

// The first key and the keys nearby are heavy, as in most heads: the sum of the chosen columns' maxima soon exceeds
// every distance's sum, and the other way round, so that the printed rule adds lines that count for nothing until none
// is left.
TEST(Lines, ThePrintedRuleStalls) {
  Matrix matrix = random_matrix(128, 1, 2, 7);
  for (size_t r = 0; r < matrix.rows.size(); ++r) {
    for (const int32_t back : {0, 1, 2, 3}) {
      if (back <= matrix.rows[r]) matrix.at(r, matrix.rows[r] - back) *= 50;
    }
    matrix.at(r, 0) *= 50;
  }
  const int64_t all = 128 * 129 / 2;
  const auto stalled = choose_lines(matrix.sample(), {0, 128}, {LineRule::kPrinted, 1, 0.955});
  EXPECT_LT(stalled.bound, 0.955);
  EXPECT_EQ(cells_by_hand(stalled.lines, {0, 128}), all);
  const auto repaired = choose_lines(matrix.sample(), {0, 128}, {LineRule::kShortest, 1, 0.955});
  EXPECT_GE(repaired.bound, 0.955);
  EXPECT_LT(cells_by_hand(repaired.lines, {0, 128}), all * 3 / 4);
}

// A size is what it says, also below what MInference's code takes at least.
TEST(Lines, CountsAreHeldBelowTheFirstAndNearestLines) {
  const Matrix matrix = random_matrix(300, 4, 2, 17);
  for (const auto& [columns, distances] : {std::pair{5, 7}, {0, 3}, {40, 120}, {29, 0}}) {
    const KeyPattern pattern = key_pattern({.columns = columns, .distances = distances});
    const Lines lines = choose_lines(matrix.sample(), {0, 300}, pattern.lines).lines;
    EXPECT_EQ(std::ssize(lines.columns), columns);
    EXPECT_EQ(std::ssize(lines.distances), std::max(1, distances)) << "a row sees itself";
    for (int32_t i = 0; i < std::min(columns, 30); ++i) EXPECT_EQ(lines.columns[i], i);
  }
}

TEST(Lines, RandomLinesAreAboutTheShare) {
  const kvilt::Run rows{0, 1024};
  const auto all = 1024.0 * 1025 / 2;
  for (const int32_t tile : {1, 16}) {
    for (const double share : {0.1, 0.5}) {
      const Lines lines = random_lines(1024, tile, share, 3);
      EXPECT_NEAR(static_cast<double>(cells_by_hand(lines, rows)) / all, share, 0.1);
      EXPECT_NE(lines.columns, random_lines(1024, tile, share, 4).columns);
    }
  }
}

// A cell may be in a column and a distance: it counts once. So a control has as many cells as what it is compared with.
TEST(Lines, RandomLinesHoldTheShareOnAverage) {
  const kvilt::Run rows{0, 1024};
  for (const double share : {0.3, 0.6, 0.9}) {
    double cells = 0;
    for (uint64_t seed = 1; seed <= 12; ++seed)
      cells += static_cast<double>(cells_by_hand(random_lines(1024, 1, share, seed), rows)) / 12;
    EXPECT_NEAR(cells / (1024.0 * 1025 / 2), share, 0.03) << "half of the share of each kind would be .28, .51, .70";
  }
  EXPECT_EQ(cells_by_hand(random_lines(1024, 16, 1, 1), rows), 1024 * 1025 / 2);
}

TEST(Lines, CoverageTakesBothKindsToTheShare) {
  const Matrix matrix = random_matrix(64, 4, 2, 11);
  const auto chosen = choose_lines(matrix.sample(), {0, 64}, {LineRule::kCoverage, 1, 0.6});
  EXPECT_GE(held_mass(matrix.sample(), {chosen.lines.columns, {}}), 0.6);
  EXPECT_GE(held_mass(matrix.sample(), {{}, chosen.lines.distances}), 0.6);
  const auto less = choose_lines(matrix.sample(), {0, 64}, {LineRule::kCoverage, 1, 0.3});
  EXPECT_LT(less.lines.columns.size(), chosen.lines.columns.size()) << "power";
  LineOptions least{LineRule::kCoverage, 1, 0.3};
  least.least = static_cast<int32_t>(less.lines.columns.size()) + 3;
  const auto more = choose_lines(matrix.sample(), {0, 64}, least).lines;
  EXPECT_EQ(std::ssize(more.columns), least.least);
  EXPECT_GE(std::ssize(more.distances), least.least);
  EXPECT_TRUE(std::ranges::includes(more.columns, less.lines.columns)) << "the heaviest";
  least.least = 1000;
  EXPECT_EQ(std::ssize(choose_lines(matrix.sample(), {0, 64}, least).lines.columns), 64);
}

TEST(Lines, ARowAlwaysSeesItself) {
  Matrix matrix = random_matrix(16, 4, 1, 9);
  for (size_t r = 0; r < matrix.rows.size(); ++r) matrix.at(r, matrix.rows[r]) = 0;
  for (const LineRule rule : kRules) {
    const auto chosen = choose_lines(matrix.sample(), {0, 16}, {rule, 1, 0.1});
    for (int32_t i = 0; i < 16; ++i) EXPECT_TRUE(chosen.lines.shows(i, i));
  }
}

}  // namespace
}  // namespace kvilt
