// What probes measure, against sums written out: a softmax for those of attention, twins for those of changes.
#include "forward/probes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "forward/prompt_for_test.h"

namespace kvilt {
namespace {

constexpr int32_t kProbed = 40, kFirst = 15;  // the rows are positions kFirst .. kProbed - 1
constexpr int kLayer = 1;
const Runs kLookers{{18, 22}, {30, 31}, {39, 40}};

// Random queries that attended to random keys.
class ProbesTest : public testing::TestWithParam<const char*> {
 protected:
  ProbesTest() : on(kGemma, GetParam()), c(on.config()), pass(*on.model, on.pool) {
    uint32_t seed = 1;
    const auto fill = [&](FloatMat& x, int64_t rows, int64_t cols) {
      const auto from = random_floats(static_cast<size_t>(rows * cols), seed++);
      std::ranges::copy(from, x.reshape(rows, cols).data);
    };
    fill(k, c.G * kProbed, c.E);
    fill(v, c.G * kProbed, c.E);
    fill(q, kProbed - kFirst, c.H * c.E);
    out.reshape(kProbed - kFirst, c.H * c.E);
    for (int g = 0; g < c.G; ++g) {
      spans.push_back({k.view().row(g * kProbed), v.view().row(g * kProbed), nullptr, 0, kProbed});
    }
    pos.resize(kProbed - kFirst);
    std::iota(pos.begin(), pos.end(), kFirst);
  }

  // What `stage` sees of rows [begin, end) of all.
  double look(const Stage& stage, int32_t begin, int32_t end, int layer = kLayer) {
    const int group = c.H / c.G, n = end - begin;
    std::vector<float> lse(static_cast<size_t>(n * c.H));
    std::vector<AttendTask> tasks(static_cast<size_t>(c.G));
    for (int g = 0; g < c.G; ++g) {
      tasks[g].q = q.view().row(begin) + g * group * c.E;
      tasks[g].out = out.view().row(begin) + g * group * c.E;
      tasks[g].q_stride = tasks[g].out_stride = c.H * c.E;
      tasks[g].pos = std::span(pos).subspan(begin, n);
      tasks[g].spans = std::span(spans).subspan(g, 1);
      tasks[g].lse = lse.data() + g * n * group;
    }
    on.model->backend().attend(on.model->attend_shape(DType::kF32), tasks, on.pool);
    return pass.look(stage, {layer, kProbed, DType::kF32, tasks}, probes);
  }
  Stage stage_with(Estimator estimator) {
    Stage stage;
    stage.probes = {{estimator, {kLayer}, kLookers}};
    return stage;
  }
  // All rows, in two chunks.
  Probe& look(const Stage& stage) {
    probes = {empty_probe(stage.probes[0], c, kProbed)};
    look(stage, 0, 10);
    look(stage, 10, kProbed - kFirst);
    return probes[0];
  }

  // The weights of row `at` and query head h, of keys before `end` only.
  std::vector<double> softmax(int32_t at, int h, int32_t end = kProbed) const {
    std::vector<double> w(kProbed, 0);
    double sum = 0;
    for (int32_t j = 0; j <= at && j < end; ++j) {
      const float *a = q.view().row(at - kFirst) + h * c.E, *b = k.view().row(h / (c.H / c.G) * kProbed + j);
      double dot = 0;
      for (int e = 0; e < c.E; ++e) dot += double{a[e]} * b[e];
      sum += w[j] = std::exp(dot * on.model->attend_shape(DType::kF32).scale);
    }
    for (double& x : w) x /= sum;
    return w;
  }
  double value_norm(int h, int32_t j) const {
    const float* x = v.view().row(h / (c.H / c.G) * kProbed + j);
    return std::sqrt(std::inner_product(x, x + c.E, x, 0.0));
  }

  ModelForTest on;
  const ModelConfig& c;
  ProbePass pass;
  FloatMat k, v, q, out;
  std::vector<KvSpan> spans;
  std::vector<int32_t> pos;
  std::vector<Probe> probes;
};

TEST_P(ProbesTest, ColumnSumsAreThoseOfASoftmax) {
  for (const int32_t end : {-1, 12}) {
    for (const bool norms : {false, true}) {
      Stage stage = stage_with(norms ? Estimator::kColumnSumValueNorm : Estimator::kColumnSum);
      stage.probes[0].key_end = end;
      const std::vector<double> score = look(stage).score;
      std::vector<double> want(kProbed, 0);
      for (const int32_t at : positions(kLookers)) {
        for (int h = 0; h < c.H; ++h) {
          const std::vector<double> w = softmax(at, h, end < 0 ? kProbed : end);
          for (int32_t j = 0; j < kProbed; ++j) want[j] += w[j] * (norms ? value_norm(h, j) : 1);
        }
      }
      for (int32_t j = 0; j < kProbed; ++j) EXPECT_NEAR(score[j], want[j], 2e-4) << j;
      stage.probes[0].rows = {{15, 40}};
      EXPECT_GT(look(stage).score[0], score[0] + 0.01) << "power: other rows look at it too";
    }
  }
}

TEST_P(ProbesTest, OutsideIsWhatAViewHides) {
  Stage stage = stage_with(Estimator::kOutside);
  stage.probes[0].views = {View{{2, 5}}, View{}, View{{0, 30}}};
  const std::vector<double> sums = look(stage).outside;
  ASSERT_EQ(sums.size(), static_cast<size_t>(c.L * c.H * 3));
  for (int h = 0; h < c.H; ++h) {
    double near = 0, wide = 0;
    for (const int32_t at : positions(kLookers)) {
      const std::vector<double> w = softmax(at, h);
      for (int32_t j = 0; j <= at; ++j) {
        if (at - j > 5 && j >= 2) near += w[j];
        if (at - j > 30) wide += w[j];
      }
    }
    const double* found = sums.data() + (kLayer * c.H + h) * 3;
    EXPECT_NEAR(found[0], near, 1e-4);
    EXPECT_GT(near, 1) << "power";
    EXPECT_EQ(found[1], 0) << "a view of all hides nothing";
    EXPECT_NEAR(found[2], wide, 1e-4);
    EXPECT_EQ(sums[h * 3], 0) << "of another layer";
  }
}

TEST_P(ProbesTest, WeightsAreTheSoftmaxItself) {
  const Stage stage = stage_with(Estimator::kWeights);
  const std::vector<float> weights = look(stage).weights[kLayer];
  const auto lookers = positions(kLookers);
  ASSERT_EQ(weights.size(), static_cast<size_t>(c.H) * lookers.size() * kProbed);
  for (int h = 0; h < c.H; ++h) {
    for (size_t r = 0; r < lookers.size(); ++r) {
      const std::vector<double> w = softmax(lookers[r], h);
      const float* found = weights.data() + (h * lookers.size() + r) * kProbed;
      for (int32_t j = 0; j < kProbed; ++j) EXPECT_NEAR(found[j], w[j], 1e-5);
    }
  }
  EXPECT_GT(std::abs(weights[0] - weights[kProbed]), 1e-4) << "power: rows differ";
}

TEST_P(ProbesTest, FadeIsWhatLaterRowsPay) {
  const Stage stage = stage_with(Estimator::kFade);
  const auto lookers = positions(kLookers);
  const std::vector<double> found = look(stage).sums[kLayer];
  ASSERT_EQ(found.size(), lookers.size() * kFadeSums);
  for (size_t t = 0; t < lookers.size(); ++t) {
    double sum = 0, logs = 0, products = 0;
    for (size_t r = t + 1; r < lookers.size(); ++r) {
      double w = 0;
      for (int h = 0; h < c.H; ++h) w += softmax(lookers[r], h)[lookers[t]] / c.H;
      sum += w;
      logs += std::log(w);
      products += std::log(w) * std::log(static_cast<double>(lookers[r] - lookers[t]));
    }
    EXPECT_NEAR(found[t * kFadeSums], sum, 1e-4);
    EXPECT_NEAR(found[t * kFadeSums + 1], logs, 1e-2);
    EXPECT_NEAR(found[t * kFadeSums + 2], products, 3e-2);
  }
  EXPECT_GT(std::abs(found[0] - found[3]), 1e-2) << "power: rows differ";
}

TEST_P(ProbesTest, NothingAtOtherLayersOrWithoutItsRows) {
  Stage stage = stage_with(Estimator::kColumnSum);
  probes = {empty_probe(stage.probes[0], c, kProbed)};
  EXPECT_EQ(look(stage, 0, 10, kLayer + 1), 0);
  EXPECT_EQ(look(stage, 8, 15), 0) << "23 .. 29 are none of its rows";
  EXPECT_EQ(probes[0].score, std::vector<double>(kProbed, 0));
  EXPECT_GT(look(stage, 0, 10), 0) << "power";
  EXPECT_NE(probes[0].score, std::vector<double>(kProbed, 0));
}

INSTANTIATE_TEST_SUITE_P(All, ProbesTest, testing::Values("reference", "auto"),
                         [](const auto& info) { return std::string(info.param); });

// Before RoPE, the same tokens have the same queries and keys at layer 0 wherever they stand.
TEST(MeanVectors, DoNotDependOnThePosition) {
  for (const char* backend : {"reference", "auto"}) {
    ModelForTest on(kProbe, backend);
    Driver driver(*on.model, on.pool);
    auto ids = random_tokens(60, 1, on.config());
    std::copy_n(ids.begin() + 3, 20, ids.begin() + 31);
    const auto sums = [&](int32_t begin, int32_t chunk) {
      PromptForTest prompt(on, ids);
      prompt.stage().probes = {{Estimator::kQueries, {0, 2}, {{begin, begin + 20}}},
                               {Estimator::kBlockKeys, {0, 2}, {{begin, begin + 20}}}};
      for (ProbeSpec& spec : prompt.stage().probes) spec.block = 8;
      prompt.run(driver, chunk);
      return prompt.probes;
    };
    const auto first = sums(3, 60), second = sums(31, 60), chunked = sums(31, 7);
    const ModelConfig& c = on.config();
    EXPECT_EQ(first[0].sums[0].size(), static_cast<size_t>(c.H * c.E));
    EXPECT_EQ(first[1].sums[0].size(), static_cast<size_t>(3 * c.G * c.E)) << "8, 8 and 4 tokens";
    for (const size_t p : {0, 1}) {
      EXPECT_EQ(chunked[p].sums, second[p].sums);
      const auto apart = [&](int layer) {
        double most = 0;
        for (size_t i = 0; i < first[p].sums[layer].size(); ++i)
          most = std::max(most, std::abs(first[p].sums[layer][i] - second[p].sums[layer][i]));
        return most;
      };
      EXPECT_LT(apart(0), 0.05);
      EXPECT_GT(apart(2), 0.5) << "power: deeper layers know the context";
      EXPECT_TRUE(first[p].sums[1].empty()) << "not asked for";
    }
  }
}

// 20 tokens of context, then 20 whose K and V of another prompt are placed where they were, then 20 more.
TEST(Changes, AreZeroForIdenticalTwinsOnly) {
  for (const char* backend : {"reference", "auto"}) {
    ModelForTest on(kProbe, backend);
    Driver driver(*on.model, on.pool);
    const auto ids = random_tokens(60, 1, on.config());
    PromptForTest source(on, ids);
    source.run(driver);
    const auto segment = source.publish();
    const auto changes = [&](const std::vector<int32_t>& prompt_ids, std::vector<int> layers, int32_t chunk) {
      PromptForTest prompt(on, prompt_ids);
      prompt.table.place({segment, 20, 20, 20});
      prompt.stage().probes = {{Estimator::kKeyChange, layers, {{25, 40}}},
                               {Estimator::kValueChange, layers, {{25, 40}}}};
      prompt.run(driver, chunk);
      return prompt.probes;
    };
    auto other = ids;
    std::ranges::copy(random_tokens(20, 2, on.config()), other.begin());
    const auto same = changes(ids, {0, 2, 5}, 60), changed = changes(other, {2, 5}, 60),
               first = changes(other, {0}, 60);
    const auto chunked = changes(other, {2, 5}, 17);
    for (size_t p = 0; p < 2; ++p) {
      EXPECT_EQ(same[p].score, std::vector<double>(60, 0));
      EXPECT_EQ(first[p].score, std::vector<double>(60, 0)) << "layer 0 needs no context";
      EXPECT_EQ(chunked[p].score, changed[p].score);
      for (int32_t pos = 0; pos < 60; ++pos) EXPECT_EQ(changed[p].score[pos] > 1e-3, pos >= 25 && pos < 40) << pos;
    }
  }
}

}  // namespace
}  // namespace kvilt
