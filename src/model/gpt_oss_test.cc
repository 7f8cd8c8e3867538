// gpt-oss's own settings and the order of its experts' weights; what they compute: tests/parity_test.cc.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/read_config.h"
#include "model/reordered_experts.h"
#include "tensor/dequantize.h"

namespace kvilt {
namespace {

nlohmann::json gpt_oss_config() {
  std::ifstream file("tests/data/fixtures/gpt-oss/config.json");
  return nlohmann::json::parse(file);
}

TEST(GptOssConfig, SaysItsArithmetic) {
  const auto read = read_hf_config(gpt_oss_config(), "config.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  const ModelConfig& c = read->config;
  EXPECT_TRUE(c.sinks);
  EXPECT_EQ(c.gate, Gate::kClampedSwiglu);
  EXPECT_TRUE(c.experts.biases && c.experts.renormalise);
  EXPECT_EQ(c.window, (std::vector<int>{24, -1, 24, -1}));
  EXPECT_TRUE(read->biases.qkv && read->biases.o && !read->biases.mlp);
  nlohmann::json json = gpt_oss_config();
  json.erase("layer_types");  // every other layer, the first one too
  EXPECT_EQ(read_hf_config(json, "config.json")->config.window, c.window);
  json["layer_types"] = {"full_attention", "full_attention", "sliding_attention", "full_attention"};
  EXPECT_EQ(read_hf_config(json, "config.json")->config.window, (std::vector<int>{-1, -1, 24, -1}));
}

TEST(GptOssConfig, RefusesOtherArithmetic) {
  const std::pair<const char*, nlohmann::json> wrong[] = {{"swiglu_limit", 5.0},
                                                          {"swiglu_alpha", 1.0},
                                                          {"quantization_config", {{"quant_method", "fp8"}}},
                                                          {"quantization_config", {{"quant_method", 3}}},
                                                          {"quantization_config", "mxfp4"},
                                                          {"sliding_window", nullptr}};
  for (const auto& [key, value] : wrong) {
    nlohmann::json json = gpt_oss_config();
    json[key] = value;
    const auto read = read_hf_config(json, "config.json");
    ASSERT_FALSE(read.ok()) << key;
    EXPECT_EQ(read.error().code, Code::kUnsupported) << read.error().message;
  }
  nlohmann::json json = gpt_oss_config();
  json["quantization_config"] = {{"quant_method", "mxfp4"}};
  EXPECT_TRUE(read_hf_config(json, "config.json").ok());
}

// Element i of a block is 2^(scale - 127) times a value that says i, in the file's order of nibbles.
TEST(ReorderedExperts, Mxfp4KeepsEveryElement) {
  constexpr std::array<float, 16> kValues = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.F, -.5, -1, -1.5, -2, -3, -4, -6};
  constexpr int64_t D = 32, F = 32;
  const auto code = [](int64_t row, int64_t col) { return static_cast<uint8_t>((row * 5 + col * 3 + row / 7) % 16); };
  const auto scale = [](int64_t row) { return static_cast<uint8_t>(124 + row % 6); };
  std::vector<std::byte> gate_up, gate_up_scales, down, down_scales;
  const auto fill = [&](int64_t rows, std::vector<std::byte>& blocks, std::vector<std::byte>& scales) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < 32; c += 2) {
        blocks.push_back(static_cast<std::byte>(code(r, c) | code(r, c + 1) << 4));
      }
      scales.push_back(static_cast<std::byte>(scale(r)));
    }
  };
  fill(2 * 2 * F, gate_up, gate_up_scales);
  fill(2 * D, down, down_scales);
  std::vector<float> biases(2 * 2 * F);
  for (size_t i = 0; i < biases.size(); ++i) biases[i] = static_cast<float>(i);
  const auto* bias = reinterpret_cast<const std::byte*>(biases.data());
  GptOssExperts stored;
  stored.gate_up_bias = {bias, DType::kF32, 2, 2 * F};
  stored.down_bias = {bias, DType::kF32, 2, D};
  stored.gate_up_blocks = {gate_up.data(), gate_up_scales.data(), 2 * 2 * F, D};
  stored.down_blocks = {down.data(), down_scales.data(), 2 * D, F};
  std::vector<ExpertWeights> experts;
  const Reordered memory = reorder_experts(stored, 2, experts);
  ASSERT_EQ(experts.size(), 2U);
  for (int64_t e = 0; e < 2; ++e) {
    const auto expect_rows = [&](const Tensor& w, int64_t first, int64_t step) {
      for (int64_t r = 0; r < w.rows; ++r) {
        std::array<float, 32> got;
        dequantize(w.dtype, w.data + static_cast<size_t>(r) * w.row_bytes(), got.size(), got.data());
        const int64_t row = first + r * step;
        for (int64_t c = 0; c < 32; ++c) {
          EXPECT_EQ(got[c], std::ldexp(kValues[code(row, c)], scale(row) - 127)) << row << " " << c;
        }
      }
    };
    expect_rows(experts[e].gate.w, e * 2 * F, 2);
    expect_rows(experts[e].up.w, e * 2 * F + 1, 2);
    expect_rows(experts[e].down.w, e * D, 1);
    const auto* up = reinterpret_cast<const float*>(experts[e].up.bias.data);
    EXPECT_EQ(up[0], static_cast<float>(e * 2 * F + 1));
    EXPECT_EQ(up[F - 1], static_cast<float>((e + 1) * 2 * F - 1));
  }
}

}  // namespace
}  // namespace kvilt
