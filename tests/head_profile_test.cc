// What profiling measures: attention weights of rows against the column sums that serving uses, and the prefix shift
// made of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "forward/driver.h"
#include "kernels/dispatch.h"
#include "kvilt/head_profile.h"
#include "model/model_file.h"
#include "probe_prompts.h"

namespace kvilt {
namespace {

constexpr int kL = 6, kG = 2, kH = 4;  // of the probe model

TEST(AttentionWeights, AreThoseOfColumnSums) {
  constexpr int32_t kT = 150, kRows = 12;
  auto opened = open_model(kModel);
  ASSERT_TRUE(opened.ok());
  const std::shared_ptr<const ModelFile> file = std::move(opened).value();
  ThreadPool pool(2);
  for (const char* backend : {"reference", "auto"}) {
    const auto model = PreparedModel::prepare(file, *find_backend(backend).value(), pool, nullptr);
    const ModelConfig& c = model->config();
    auto store = PageStore::create({kL, kG, c.E, 16, DType::kF32}, int64_t{16} << 20);
    ASSERT_TRUE(store.ok());
    const auto ids = tokens(kT, 3);
    Plan plan;
    plan.prompt_len = kT;
    plan.stages = {uniform_stage({{0, kT}}, kL)};
    ProbeSpec weights;
    weights.estimator = Estimator::kWeights;
    weights.layers = {1, 4};
    weights.rows = {{30, 32}, {kT - kRows + 2, kT}};
    ProbeSpec columns = weights;
    columns.estimator = Estimator::kColumnSum;
    plan.stages[0].probes = {weights, columns};
    const Band band = next_band(plan.stages[0], 0, kL, {{kT - 1, kT}});
    PageTable table(store.value(), c.ropes());
    table.add(plan.stages[0].sets, std::vector<uint16_t>(kL, 0));
    std::vector<Probe> probes(2);
    probes[1].score.assign(kT, 0);
    for (int32_t begin = 0; begin < kT; begin += 37) {
      Chunk chunk;
      chunk.kv = &table;
      chunk.plan = &plan;
      chunk.stage = &plan.stages[0];
      chunk.band = &band;
      chunk.range = {begin, std::min(kT, begin + 37)};
      chunk.tokens = ids;
      chunk.probes = probes;
      Driver(*model, pool).run({&chunk, 1});
    }
    std::vector<double> sum(kT, 0);
    for (const int layer : weights.layers) {
      const std::vector<float>& found = probes[0].weights[layer];
      ASSERT_EQ(found.size(), static_cast<size_t>(kH * kRows * kT));
      for (size_t row = 0; row < kH * kRows; ++row) {
        const float* w = found.data() + row * kT;
        EXPECT_NEAR(std::accumulate(w, w + kT, 0.0), 1, 1e-4);
        const int32_t pos =
            row % kRows < 2 ? 30 + static_cast<int32_t>(row % kRows) : kT - kRows + static_cast<int32_t>(row % kRows);
        for (int32_t j = pos + 1; j < kT; ++j) EXPECT_EQ(w[j], 0) << "a row sees nothing that comes later";
        for (int32_t j = 0; j < kT; ++j) sum[j] += w[j];
      }
    }
    for (size_t j = 0; j < kT; ++j) EXPECT_NEAR(sum[j], probes[1].score[j], 1e-4) << j;
    EXPECT_TRUE(probes[0].weights[0].empty());
  }
}

class PrefixShift : public testing::Test {
 protected:
  PrefixShift() : engine(open_for_test({.model = kModel, .kv_bytes = int64_t{32} << 20})) {}
  HeadProfile profile(std::vector<std::vector<int32_t>> prefixes, int at = 0) {
    HeadProfileOptions options;
    options.ablation = false;
    options.window = 16;
    options.prefixes = std::move(prefixes);
    options.prefix_at = at;
    auto out = profile_heads(*engine, tokens(120, 1), options);
    EXPECT_TRUE(out.ok()) << out.error().message;
    return std::move(out).value();
  }
  std::unique_ptr<Engine> engine;
};

TEST_F(PrefixShift, NothingBeforeThePromptShiftsNothing) {
  const HeadProfile none = profile({});
  EXPECT_TRUE(none.shift_max.empty() && none.shift_mean.empty());
  const HeadProfile empty = profile({{}});
  for (const double shift : empty.shift_max) EXPECT_NEAR(shift, 0, 1e-12);
  const auto a = tokens(60, 7), b = tokens(31, 8);
  const HeadProfile one = profile({a}), other = profile({b}), both = profile({a, b}), inside = profile({a}, 1);
  ASSERT_EQ(one.shift_max.size(), static_cast<size_t>(kL * kG));
  for (size_t i = 0; i < one.shift_max.size(); ++i) {
    EXPECT_GE(one.shift_mean[i], 0);
    EXPECT_LE(one.shift_mean[i], one.shift_max[i]);
    EXPECT_LE(one.shift_max[i], 1);
    EXPECT_NEAR(both.shift_max[i], (one.shift_max[i] + other.shift_max[i]) / 2, 1e-9);
    EXPECT_NEAR(both.shift_mean[i], (one.shift_mean[i] + other.shift_mean[i]) / 2, 1e-9);
  }
  // Some heads see next to nothing of what is far: which ones depends on the KV's rounding.
  EXPECT_GT(std::ranges::count_if(one.shift_mean, [](double shift) { return shift > 1e-6; }), kL * kG / 2) << "power";
  EXPECT_NE(inside.shift_max, one.shift_max);
  EXPECT_EQ(one.edge_max, none.edge_max) << "the other measures stay";
}

TEST_F(PrefixShift, MistakesAreNamed) {
  HeadProfileOptions options;
  options.ablation = false;
  options.prefixes = {{5, 1 << 30}};
  const auto token = profile_heads(*engine, tokens(50, 1), options);
  ASSERT_FALSE(token.ok());
  EXPECT_NE(token.error().message.find("prefix[1]"), std::string::npos);
  options.prefixes = {tokens(1 << 17, 1)};
  EXPECT_EQ(profile_heads(*engine, tokens(50, 1), options).error().code, Code::kExhausted);
  options.prefixes = {{5}};
  options.prefix_at = 50;
  EXPECT_EQ(profile_heads(*engine, tokens(50, 1), options).error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvilt
