// Models with recurrent layers are refused with the reason, from both kinds of files; others as before.
#include "model/recurrent.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "model/read_config.h"
#include "model/tiny_gguf_for_test.h"

namespace kvilt {
namespace {

constexpr const char* kWhy = "whose state is of all the text before it";
constexpr const char* kPage = "docs/architectures.md#recurrent-layers";

std::string refusal_of_config(const nlohmann::json& config) {
  const auto read = read_hf_config(config, "config.json");
  EXPECT_FALSE(read.ok());
  if (read.ok()) return "";
  EXPECT_EQ(read.error().code, Code::kUnsupported);
  return read.error().message;
}

std::string refusal_of_gguf(const std::string& arch, const char* key = nullptr) {
  TinyGguf tiny;
  tiny.arch = arch;
  if (key) tiny.metadata = [&](GgufBytes& out) { out.u32(arch + "." + key, 4); };
  const std::string bytes = tiny.build();
  const auto gguf = parse_gguf(std::as_bytes(std::span(bytes)), "a.gguf");
  EXPECT_TRUE(gguf.ok());
  const auto read = read_gguf_config(*gguf, "a.gguf");
  EXPECT_FALSE(read.ok());
  return read.ok() ? "" : read.error().message;
}

void expect_why(const std::string& message, const std::string& name, const std::string& what) {
  for (const std::string& part : {"'" + name + "'", "(" + what + ")", std::string(kWhy), std::string(kPage),
                                  std::string("This build runs llama")}) {
    EXPECT_NE(message.find(part), std::string::npos) << message << " lacks " << part;
  }
}

TEST(RecurrentLayers, AreRefusedWithTheReasonByModelType) {
  const struct {
    const char *type, *what;
  } cases[] = {{"mamba", "Mamba"},
               {"mamba2", "Mamba"},
               {"falcon_mamba", "Mamba"},
               {"jamba", "Mamba"},
               {"bamba", "Mamba"},
               {"zamba2", "Mamba"},
               {"falcon_h1", "Mamba"},
               {"granitemoehybrid", "Mamba"},
               {"nemotron_h", "Mamba"},
               {"qwen3_next", "gated delta nets"},
               {"qwen3_5", "gated delta nets"},
               {"qwen3_5_moe_text", "gated delta nets"},
               {"olmo_hybrid", "gated delta nets"},
               {"recurrent_gemma", "RG-LRU"},
               {"rwkv", "RWKV's time mixing"},
               {"lfm2", "short convolutions"},
               {"lfm2_moe", "short convolutions"},
               {"xlstm", "xLSTM"}};
  for (const auto& c : cases) expect_why(refusal_of_config({{"model_type", c.type}}), c.type, c.what);
}

TEST(RecurrentLayers, AreRefusedWithTheReasonByArchitecture) {
  const struct {
    const char *arch, *what;
  } cases[] = {{"mamba2", "Mamba"},
               {"jamba", "Mamba"},
               {"falcon-h1", "Mamba"},
               {"granitehybrid", "Mamba"},
               {"nemotron_h_moe", "Mamba"},
               {"plamo2", "Mamba"},
               {"qwen3next", "gated delta nets"},
               {"qwen35moe", "gated delta nets"},
               {"kimi-linear", "gated delta nets"},
               {"rwkv6qwen2", "RWKV's time mixing"},
               {"arwkv7", "RWKV's time mixing"},
               {"lfm2moe", "short convolutions"}};
  for (const auto& c : cases) expect_why(refusal_of_gguf(c.arch), c.arch, c.what);
}

// A family that nobody here has heard of is known by what its file says of such layers.
TEST(RecurrentLayers, AreSeenInFilesOfOtherFamilies) {
  const nlohmann::json base = {{"model_type", "novel"}};
  const struct {
    const char* key;
    nlohmann::json value;
    const char* what;
  } cases[] = {{"layer_types", {"linear_attention", "full_attention"}, "linear attention"},
               {"layer_types", {"full_attention", "conv"}, "short convolutions"},
               {"layers_block_type", {"attention", "mamba"}, "Mamba"},
               {"block_types", {"recurrent", "attention"}, "RG-LRU"},
               {"mamba_d_state", 16, "Mamba"},
               {"linear_num_value_heads", 8, "linear attention"}};
  for (const auto& c : cases) {
    nlohmann::json config = base;
    config[c.key] = c.value;
    expect_why(refusal_of_config(config), "novel", c.what);
  }
  expect_why(refusal_of_gguf("novel", "ssm.state_size"), "novel", "state spaces");
  expect_why(refusal_of_gguf("novel", "wkv.head_size"), "novel", "RWKV's time mixing");
  expect_why(refusal_of_gguf("novel", "shortconv.l_cache"), "novel", "short convolutions");
}

TEST(RecurrentLayers, AreNotSeenWhereThereAreNone) {
  for (const char* type : {"gpt_neox", "minimax_m2", "plamo3", "olmo3", "qwen3_vl", "gemma3n"}) {
    const std::string message = refusal_of_config(
        {{"model_type", type}, {"layer_types", {"full_attention", "sliding_attention"}}, {"mamba_d_state", nullptr}});
    EXPECT_EQ(message.find("recurrent"), std::string::npos) << message;
    EXPECT_NE(message.find("this build runs llama"), std::string::npos) << message;
  }
  EXPECT_EQ(refusal_of_gguf("gptneox").find("recurrent"), std::string::npos);
}

}  // namespace
}  // namespace kvilt
