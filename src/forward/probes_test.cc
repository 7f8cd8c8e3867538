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

// Queries and keys of known numbers, rotated to where they are; 25 .. 34 are placed, computed 12 further back.
class MeanVectorsByHand : public testing::Test {
 protected:
  static constexpr int32_t kRows = 40, kPlaced = 25, kPlacedEnd = 35, kBack = 12;

  MeanVectorsByHand() {
    const std::vector<uint16_t> all(static_cast<size_t>(c.L), 0);
    const auto write = [&](PageTable& to, int32_t of, int32_t pos) {
      for (int l = 0; l < c.L; ++l) to.write(l, pos, row_of(l, c.G, of, pos).data(), row_of(l, c.G, of, 0).data());
    };
    PageTable piece(*on.store, c.ropes());
    piece.add(std::vector<Runs>{{{0, kPlacedEnd - kBack}}}, all);
    for (int32_t pos = kPlaced; pos < kPlacedEnd; ++pos) write(piece, pos, pos - kBack);
    kv.place({piece.publish({0, kPlacedEnd - kBack}), kPlaced - kBack, kPlacedEnd - kPlaced, kPlaced});
    const Runs own{{0, kPlaced}, {kPlacedEnd, kRows}};
    kv.add(std::vector<Runs>{own}, all);
    for (const int32_t pos : positions(own)) write(kv, pos, pos);
  }
  static double number(int head, int32_t pos, int e) { return 10.0 * head + e + pos / 64.0; }
  // All heads of the row of a position, turned as at `pos`; halves are pairs.
  std::vector<float> row_of(int layer, int heads, int32_t of, int32_t pos) const {
    const LayerRopes ropes = c.ropes();
    std::vector<float> out(static_cast<size_t>(heads * c.E));
    for (int h = 0; h < heads; ++h) {
      for (int i = 0; i < c.E / 2; ++i) {
        const double a = number(h, of, i), b = number(h, of, i + c.E / 2), angle = pos * ropes.at(layer).inv_freq[i];
        out[h * c.E + i] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
        out[h * c.E + i + c.E / 2] = static_cast<float>(a * std::sin(angle) + b * std::cos(angle));
      }
    }
    return out;
  }
  // What the stage's probes find at a layer in the rows of a chunk.
  void look(const Stage& stage, int layer, kvilt::Run chunk, std::vector<Probe>& probes) {
    const int group = c.H / c.G;
    std::vector<int32_t> pos(static_cast<size_t>(chunk.size()));
    std::iota(pos.begin(), pos.end(), chunk.begin);
    std::vector<float> q, lse(pos.size() * static_cast<size_t>(c.H));
    for (const int32_t at : pos) {
      for (const float x : row_of(layer, c.H, at, at)) q.push_back(x);
    }
    std::vector<AttendTask> tasks(static_cast<size_t>(c.G));
    for (int g = 0; g < c.G; ++g) {
      tasks[g].q = q.data() + g * group * c.E;
      tasks[g].q_stride = c.H * c.E;
      tasks[g].pos = pos;
      tasks[g].lse = lse.data() + g * std::ssize(pos) * group;
    }
    pass.look(stage, {.layer = layer, .prompt_len = kRows, .heads = tasks, .kv = &kv}, probes);
  }
  // sums: of these positions, of each head.
  void expect_sums(std::span<const double> sums, int heads, const std::vector<int32_t>& of) const {
    ASSERT_EQ(sums.size(), static_cast<size_t>(heads * c.E));
    for (int h = 0; h < heads; ++h) {
      for (int e = 0; e < c.E; ++e) {
        double sum = 0;
        for (const int32_t pos : of) sum += number(h, pos, e);
        EXPECT_NEAR(sums[h * c.E + e], sum, 1e-3) << h << " " << e;
      }
    }
  }

  ModelForTest on{kGemma};
  const ModelConfig& c = on.config();
  PageTable kv{*on.store, c.ropes()};
  ProbePass pass{*on.model, on.pool};
};

// Heads in order, K in blocks of four of the rows that look, whichever positions they have and chunks they come in.
TEST_F(MeanVectorsByHand, AreTheSumsOfWhatWasThereBeforeRope) {
  ASSERT_TRUE(c.H == 4 && c.G == 2);
  const Runs looking{{18, 22}, {30, 31}, {35, 40}};
  const std::vector<std::vector<int32_t>> blocks{{18, 19, 20, 21}, {30, 35, 36, 37}, {38, 39}};
  for (const int layer : {0, 1}) {  // each with a RoPE of its own
    SCOPED_TRACE(layer);
    Stage stage;
    stage.probes = {{Estimator::kQueries, {layer}, looking}, {Estimator::kBlockKeys, {layer}, looking}};
    stage.probes[1].block = 4;
    std::vector<Probe> probes;
    for (const ProbeSpec& spec : stage.probes) probes.push_back(empty_probe(spec, c, kRows));
    for (const kvilt::Run chunk : {kvilt::Run{15, 20}, kvilt::Run{20, 37}, kvilt::Run{37, kRows}})
      look(stage, layer, chunk, probes);
    expect_sums(probes[0].sums[layer], c.H, positions(looking));
    const std::span<const double> keys = probes[1].sums[layer];
    const size_t width = static_cast<size_t>(c.G) * static_cast<size_t>(c.E);
    ASSERT_EQ(keys.size(), blocks.size() * width);
    for (size_t b = 0; b < blocks.size(); ++b) expect_sums(keys.subspan(b * width, width), c.G, blocks[b]);
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
