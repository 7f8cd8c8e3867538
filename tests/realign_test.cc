// Layer-0 K and V need no context, so a placed piece's layer-0 keys, realigned, must equal fresh ones: the best single
// test of RoPE shifts (docs/math/rope_shift.md), on every kind of RoPE that a model here has.
#include <gtest/gtest.h>

#include <cmath>

#include "forward/driver.h"
#include "kernels/dispatch.h"
#include "model/model_file.h"
#include "random_tokens.h"

namespace kvilt {
namespace {

// A dense prefill of `ids` into a table of its own.
void prefill(Driver& driver, PageTable& table, const ModelConfig& config, const std::vector<int32_t>& ids) {
  const auto T = static_cast<int32_t>(ids.size());
  Plan plan;
  plan.prompt_len = T;
  plan.stages = {uniform_stage({{0, T}}, config.L)};
  const Band band = next_band(plan.stages[0], 0, config.L, {{T - 1, T}});
  table.add(plan.stages[0].sets, std::vector<uint16_t>(static_cast<size_t>(config.L), 0));
  Chunk chunk;
  chunk.kv = &table;
  chunk.plan = &plan;
  chunk.stage = &plan.stages[0];
  chunk.band = &band;
  chunk.range = {0, T};
  chunk.tokens = ids;
  driver.run({&chunk, 1});
}

class Realign : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(Realign, LayerZeroKeysOfAPlacedPieceEqualFreshOnes) {
  const auto& [path, backend_name] = GetParam();
  auto opened = open_model(path);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  std::shared_ptr<const ModelFile> file = std::move(opened).value();
  const Backend* backend = find_backend(backend_name).value();
  ThreadPool pool(2);
  const auto model = PreparedModel::prepare(file, *backend, pool, nullptr);
  const ModelConfig& c = model->config();
  auto store = PageStore::create({c.kv_layers(), c.G, c.E, 16, DType::kF32, c.kv_readers}, int64_t{32} << 20);
  ASSERT_TRUE(store.ok());
  Driver driver(*model, pool);
  const auto piece = tokens(70, 1, c.V), before = tokens(90, 2, c.V);
  std::vector<int32_t> prompt = before;
  prompt.insert(prompt.end(), piece.begin(), piece.end());

  PageTable alone(*store, c.ropes()), fresh(*store, c.ropes());
  prefill(driver, alone, c, piece);
  prefill(driver, fresh, c, prompt);
  const auto run = alone.publish({0, 70});
  PageTable placed(*store, c.ropes());
  placed.place({run, 5, 60, 95});  // its tokens 5 .. 64, 90 positions further on
  placed.copy_in(*backend, model->attend_shape(DType::kF32));

  double aligned = 0, unaligned = 0, deeper = 0;
  for (int head = 0; head < c.G; ++head) {
    for (int32_t i = 0; i < 60; ++i) {
      const auto* got = reinterpret_cast<const float*>(placed.private_k(0, head, 95 + i));
      const auto* want = reinterpret_cast<const float*>(fresh.private_k(0, head, 95 + i));
      const auto* stored = reinterpret_cast<const float*>(alone.private_k(0, head, 5 + i));
      const auto* got1 = reinterpret_cast<const float*>(placed.private_k(1, head, 95 + i));
      const auto* want1 = reinterpret_cast<const float*>(fresh.private_k(1, head, 95 + i));
      for (int e = 0; e < c.E; ++e) {
        aligned = std::max(aligned, std::abs(double{got[e]} - want[e]));
        unaligned = std::max(unaligned, std::abs(double{stored[e]} - want[e]));
        deeper = std::max(deeper, std::abs(double{got1[e]} - want1[e]));
      }
    }
  }
  EXPECT_LT(aligned, 1e-4);
  EXPECT_GT(unaligned, 0.05) << "power: unaligned keys must be far off";
  EXPECT_GT(deeper, 100 * aligned) << "power: from layer 1 on the context matters";
}

// A stage may end in a probe at its last layer, and a probe's rows need not leave theirs; a second pass does not count
// twice.
TEST(Probes, AtTheLastLayerOfAStageAndForRowsThatStay) {
  auto opened = open_model("tests/data/models/probe-1M");
  ASSERT_TRUE(opened.ok());
  std::shared_ptr<const ModelFile> file = std::move(opened).value();
  ThreadPool pool(2);
  const auto model = PreparedModel::prepare(file, *find_backend("auto").value(), pool, nullptr);
  const ModelConfig& c = model->config();
  auto store = PageStore::create({c.L, c.G, c.E, 16, DType::kF32}, int64_t{8} << 20);
  Driver driver(*model, pool);
  const auto ids = tokens(40, 3, c.V);
  const Runs whole{{0, 40}}, looking{{30, 40}};
  const auto score = [&](int layer_end) {
    Plan plan;
    plan.prompt_len = 40;
    plan.stages = {uniform_stage(whole, layer_end)};
    plan.stages[0].probes = {{Estimator::kColumnSum, {2}, looking}};
    const Band band = next_band(plan.stages[0], 0, c.L, {});
    PageTable table(*store, c.ropes());
    std::vector<uint16_t> write(static_cast<size_t>(c.L), 0);
    table.add(plan.stages[0].sets, write);
    std::vector<Probe> probes(1);
    probes[0].score.assign(40, 0);
    Chunk chunk;
    chunk.kv = &table;
    chunk.plan = &plan;
    chunk.stage = &plan.stages[0];
    chunk.band = &band;
    chunk.range = {0, 40};
    chunk.tokens = ids;
    chunk.probes = probes;
    driver.run({&chunk, 1});
    return probes[0].score;
  };
  const auto at_the_end = score(3),
             inside = score(5);  // layer 2 is the last of the first, and rows leave it in the second
  double sum = 0;
  for (const double s : at_the_end) sum += s;
  EXPECT_NEAR(sum, 10.0 * c.H, 1e-3);  // each row and head spreads a weight of one
  EXPECT_EQ(at_the_end, inside);
}

std::string name_of(const testing::TestParamInfo<std::tuple<std::string, std::string>>& info) {
  std::string name = std::get<0>(info.param) + "_" + std::get<1>(info.param);
  for (char& ch : name) ch = std::isalnum(static_cast<unsigned char>(ch)) ? ch : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Realign,
                         testing::Combine(testing::Values("tests/data/fixtures/llama",
                                                          "tests/data/fixtures/llama-linear",
                                                          "tests/data/fixtures/llama-llama3",
                                                          "tests/data/fixtures/llama-yarn", "tests/data/fixtures/qwen2",
                                                          "tests/data/fixtures/qwen3", "tests/data/fixtures/phi3",
                                                          "tests/data/fixtures/gemma3",         // layer 0 is local
                                                          "tests/data/fixtures/gemma3-nested",  // layer 0 is global
                                                          "tests/data/fixtures/gemma4",         // heads are widened
                                                          "tests/data/fixtures/gemma4-inputs",  // layer 0 is global
                                                          "tests/data/fixtures/gemma4-shared",
                                                          "tests/data/models/stories260K/derived-stories260K-F32.gguf",
                                                          "tests/data/models/probe-1M"),
                                          testing::Values("reference", "auto")),
                         name_of);

}  // namespace
}  // namespace kvilt
