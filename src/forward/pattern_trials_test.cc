// What a pattern is said to hold: the sum of the attention weights on the keys that it shows, row by row.
#include "forward/pattern_trials.h"

#include <gtest/gtest.h>

#include <numeric>

#include "forward/prompt_for_test.h"

namespace kvilt {
namespace {

constexpr int32_t kRows = 200;

SparseRule near(int32_t sink, int32_t window) {
  SparseRule out;
  out.by = KeyPattern::By::kFixed;
  out.sink = sink, out.window = window;
  return out;
}

class PatternTrialsTest : public testing::TestWithParam<const char*> {};

TEST_P(PatternTrialsTest, TheyHoldTheWeightsOfWhatTheyShow) {
  ModelForTest on(kProbe, GetParam());
  const ModelConfig& c = on.config();
  Driver driver(*on.model, on.pool);
  PromptForTest prompt(on, random_tokens(kRows, 3, c));
  std::vector<int> layers(static_cast<size_t>(c.L));
  std::iota(layers.begin(), layers.end(), 0);
  prompt.stage().probes = {{Estimator::kWeights, layers, {{0, kRows}}}};
  PatternTrials trials;
  const std::pair<int32_t, int32_t> sizes[] = {{5, 20}, {0, 0}, {70, 3}, {0, kRows}};
  for (const auto& [sink, window] : sizes) trials.rules.push_back(near(sink, window));
  const size_t n = trials.rules.size();
  trials.tried.resize(static_cast<size_t>(c.L * c.G) * n);
  prompt.enter();
  Chunk chunk = prompt.chunk({0, kRows});
  chunk.trials = &trials;
  driver.run({&chunk, 1});
  const int group = c.H / c.G;
  for (int head = 0; head < c.L * c.G; ++head) {
    const std::vector<float>& weights = prompt.probes[0].weights[head / c.G];
    for (size_t rule = 0; rule < n; ++rule) {
      const auto [sink, window] = sizes[rule];
      double held = 0, exact = 0, cells = 0, all = 0;
      for (int32_t i = 0; i < kRows; ++i) {
        const int32_t tile = i / kSparseTile * kSparseTile;  // its first row sees no more keys than the others
        for (int h = head % c.G * group; h < (head % c.G + 1) * group; ++h) {
          const float* of_row = weights.data() + (h * int64_t{kRows} + i) * kRows;
          for (int32_t j = 0; j <= i; ++j) {
            const bool seen = j < sink || j >= tile - window;
            held += seen ? of_row[j] : 0;
            exact += j < sink || j >= i - window ? of_row[j] : 0;
            cells += seen;
            ++all;
          }
        }
      }
      const PatternTrials::Tried& tried = trials.tried[static_cast<size_t>(head) * n + rule];
      EXPECT_EQ(tried.rows, kRows * group);
      EXPECT_NEAR(tried.held / tried.rows, held / tried.rows, 1e-4) << head << ' ' << rule;
      EXPECT_NEAR(tried.flops / tried.dense, cells / all, 1e-9);
      EXPECT_EQ(held - exact < 1e-3, window == kRows) << "power: not rounded to tiles it were less";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, PatternTrialsTest, testing::Values("reference", "auto"));

}  // namespace
}  // namespace kvilt
