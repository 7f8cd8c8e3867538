// The state of a prompt's last token (Request::last_hidden), against what Transformers computed; and the settings that
// must not matter to it.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine_harness.h"
#include "model/model_file.h"
#include "tensor/dequantize.h"

namespace kvilt {
namespace {

constexpr const char* kFixtures = "tests/data/fixtures/";

std::unique_ptr<Engine> engine_of(const std::string& model, int chunk = 0) {
  EngineOptions options{.model = model, .kv_type = KvType::kF32, .activations = ActivationType::kF32};
  if (chunk > 0) options.chunk_tokens = chunk;
  return open_for_test(options);
}

Outcome read(Engine& engine, std::vector<int32_t> tokens, const std::string& policy = "full") {
  Request request = request_of(std::move(tokens), policy, 0);
  request.last_hidden = true;
  return ask_ok(engine, std::move(request));
}

// The model's final norm of a state, in double precision.
std::vector<double> normed(const ModelFile& file, const std::vector<double>& state) {
  const Tensor& norm = file.weights.final_norm;
  std::vector<float> weight(state.size());
  dequantize(norm.dtype, norm.data, weight.size(), weight.data());
  double sum = 0;
  for (const double value : state) sum += value * value;
  const double scale = 1 / std::sqrt(sum / static_cast<double>(state.size()) + file.config.rms_eps);
  std::vector<double> out;
  for (size_t i = 0; i < state.size(); ++i) out.push_back(state[i] * scale * weight[i]);
  return out;
}

TEST(LastHidden, IsWhatTransformersHas) {
  for (const char* name : {"qwen3", "qwen2-tied", "llama", "mistral"}) {
    SCOPED_TRACE(name);
    const std::string folder = std::string(kFixtures) + name;
    const auto file = open_model(folder);
    ASSERT_TRUE(file.ok());
    std::ifstream stream(folder + "/golden.json");
    const auto golden = nlohmann::json::parse(stream);
    const auto engine = engine_of(folder);
    for (const auto& entry : golden["cases"]) {
      const auto tokens = entry["tokens"].get<std::vector<int32_t>>();
      std::vector<double> state, other;
      for (const auto& hidden : entry["hidden"]) {
        if (hidden["layer"] != file.value()->config.L - 1) continue;
        (hidden["pos"] == tokens.size() - 1 ? state : other) = hidden["values"].get<std::vector<double>>();
      }
      ASSERT_FALSE(state.empty());
      const std::vector<double> expected = normed(*file.value(), state);
      const auto out = read(*engine, tokens).completion.last_hidden;
      ASSERT_EQ(out.size(), expected.size());
      double most = 0, power = 0;
      for (size_t i = 0; i < out.size(); ++i) most = std::max(most, std::abs(out[i] - expected[i]));
      EXPECT_LT(most, 1e-3) << entry["name"];
      if (other.empty()) continue;
      const std::vector<double> elsewhere = normed(*file.value(), other);
      for (size_t i = 0; i < out.size(); ++i) power = std::max(power, std::abs(out[i] - elsewhere[i]));
      EXPECT_GT(power, 1e-2) << "power: another token's state is another";
    }
  }
}

TEST(LastHidden, ChunksAndTheCacheDoNotMatter) {
  const std::string model = std::string(kFixtures) + "qwen3";
  std::vector<int32_t> tokens;
  for (int i = 0; i < 90; ++i) tokens.push_back(3 + i % 40);
  const auto whole = engine_of(model, 128), parts = engine_of(model, 16);
  const auto out = read(*whole, tokens).completion.last_hidden;
  EXPECT_EQ(read(*parts, tokens).completion.last_hidden, out);
  const Outcome again = read(*whole, tokens, "prefix");
  EXPECT_GT(again.usage().prefix, 0) << "power: it was cached";
  EXPECT_EQ(again.completion.last_hidden, out);
  tokens.back() = 60;
  EXPECT_NE(read(*whole, tokens).completion.last_hidden, out) << "power";
  EXPECT_TRUE(ask_ok(*whole, request_of(tokens, "full", 0)).completion.last_hidden.empty()) << "unless it is asked for";
}

}  // namespace
}  // namespace kvilt
