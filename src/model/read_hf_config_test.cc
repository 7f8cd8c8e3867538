// config.json: each contradiction is named, and what a file leaves out is Transformers' default for its family.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/read_config.h"

namespace kvilt {
namespace {

TEST(HfConfig, NamesTheSettingThatIsWrong) {
  const nlohmann::json good = {
      {"model_type", "llama"},  {"hidden_size", 64}, {"num_attention_heads", 8}, {"intermediate_size", 64},
      {"num_hidden_layers", 1}, {"vocab_size", 32},  {"num_key_value_heads", 4}, {"max_position_embeddings", 128}};
  ASSERT_TRUE(read_hf_config(good, "c").ok());
  const struct {
    const char* key;
    nlohmann::json value;
    Code code;
    const char* part;
  } cases[] = {
      {"model_type", "gpt_neox", Code::kUnsupported, "'gpt_neox'"},
      {"model_type", 3, Code::kCorrupt, "'model_type' must be a text, not 3"},
      {"hidden_size", -64, Code::kCorrupt, "'hidden_size' must be a whole number from 1"},
      {"hidden_size", 64.5, Code::kCorrupt, "not 64.5"},
      {"hidden_size", 18446744073709551615ull, Code::kCorrupt, "number out of range"},
      {"hidden_size", nullptr, Code::kCorrupt, "'hidden_size' is missing"},
      {"hidden_size", 63, Code::kCorrupt, "no multiple"},
      {"num_hidden_layers", 1000000, Code::kCorrupt, "from 1 to"},
      {"num_key_value_heads", 3, Code::kCorrupt, "no multiple of 3"},
      {"head_dim", 7, Code::kCorrupt, "not even"},
      {"hidden_act", "gelu", Code::kUnsupported, "'gelu'"},
      {"use_sliding_window", true, Code::kUnsupported, "sliding"},
      {"layer_types", {"sliding_attention"}, Code::kCorrupt, "layer_types"},
      {"quantization_config", {{"bits", 4}}, Code::kUnsupported, "quantization_config"},
      {"rms_norm_eps", -1, Code::kCorrupt, "rms_norm_eps"},
      {"tie_word_embeddings", "yes", Code::kCorrupt, "true or false"},
  };
  for (const auto& c : cases) {
    nlohmann::json config = good;
    config[c.key] = c.value;
    const auto read = read_hf_config(config, "the-config.json");
    ASSERT_FALSE(read.ok()) << c.key << " " << c.value;
    EXPECT_EQ(read.error().code, c.code) << read.error().message;
    EXPECT_NE(read.error().message.find(c.part), std::string::npos) << read.error().message << " wanted " << c.part;
    EXPECT_EQ(read.error().message.rfind("the-config.json", 0), 0u) << read.error().message;
  }
}

// Transformers' defaults, by family.
TEST(HfConfig, WhatAFileLeavesOutIsItsFamilysDefault) {
  const nlohmann::json base = {{"hidden_size", 64},
                               {"num_attention_heads", 8},
                               {"num_key_value_heads", 8},
                               {"intermediate_size", 64},
                               {"head_dim", 8},
                               {"num_hidden_layers", 1},
                               {"vocab_size", 32},
                               {"max_position_embeddings", 8192},
                               {"sliding_window", 8},
                               {"num_experts", 2},
                               {"moe_intermediate_size", 32},
                               {"num_experts_per_tok", 1},
                               {"num_local_experts", 2}};
  const nlohmann::json scaling = {{"rope_type", "linear"}, {"factor", 2}};
  const struct {
    const char* type;
    float eps;
    double theta;
  } families[] = {{"llama", 1e-6f, 1e4}, {"mistral", 1e-6f, 1e4},     {"mixtral", 1e-5f, 1e6},
                  {"qwen2", 1e-6f, 1e4}, {"qwen3", 1e-6f, 1e4},       {"qwen3_moe", 1e-6f, 1e4},
                  {"phi3", 1e-5f, 1e4},  {"gemma3_text", 1e-6f, 1e6}, {"gpt_oss", 1e-5f, 150000}};
  for (const auto& family : families) {
    nlohmann::json config = base;
    config["model_type"] = family.type;
    if (std::string(family.type) == "gpt_oss") config["rope_scaling"] = scaling;
    const auto read = read_hf_config(config, "c");
    ASSERT_TRUE(read.ok()) << family.type << ": " << read.error().message;
    EXPECT_EQ(read->config.rms_eps, family.eps) << family.type;
    EXPECT_EQ(read->config.rope.theta, family.theta) << family.type;
    config["rms_norm_eps"] = 0.25, config["rope_theta"] = 777;
    const auto stated = read_hf_config(config, "c");
    ASSERT_TRUE(stated.ok()) << stated.error().message;
    EXPECT_EQ(stated->config.rms_eps, 0.25f) << family.type;
    EXPECT_EQ(stated->config.rope.theta, 777) << family.type;
  }
  nlohmann::json config = base;
  config["model_type"] = "gpt_oss";
  const auto refused = read_hf_config(config, "c");
  ASSERT_FALSE(refused.ok()) << "Transformers' default is a YaRN";
  EXPECT_EQ(refused.error().code, Code::kUnsupported);
  EXPECT_NE(refused.error().message.find("without RoPE settings"), std::string::npos) << refused.error().message;
  // phi3's LongRoPE: short factors up to 4,096 positions.
  config["model_type"] = "phi3";
  config["rope_scaling"] = {{"type", "longrope"}, {"short_factor", {1, 1, 1, 1}}, {"long_factor", {2, 2, 2, 2}}};
  const auto phi3 = read_hf_config(config, "c");
  ASSERT_TRUE(phi3.ok()) << phi3.error().message;
  EXPECT_EQ(phi3->config.long_above, 4096);
}

// What each family reads from the keys about windows, and from missing ones (Transformers 5).
TEST(HfConfig, WindowsPerLayer) {
  const nlohmann::json base = {{"hidden_size", 64},      {"num_attention_heads", 8}, {"intermediate_size", 64},
                               {"num_hidden_layers", 3}, {"vocab_size", 32},         {"max_position_embeddings", 128}};
  using Windows = std::vector<int>;
  const auto read = [&](const char* type, const nlohmann::json& more) {
    nlohmann::json config = base;
    config["model_type"] = type;
    config.update(more);
    const auto out = read_hf_config(config, "c");
    return out.ok() ? out->config.window : Windows{out.error().code == Code::kUnsupported ? -2 : -3};
  };
  const nlohmann::json mixed = {"full_attention", "sliding_attention", "full_attention"};
  EXPECT_EQ(read("mistral", {{"sliding_window", 16}}), Windows({16, 16, 16}));
  EXPECT_EQ(read("mistral", {{"sliding_window", nullptr}}), Windows());
  EXPECT_EQ(read("mistral", nlohmann::json::object()), Windows({4096, 4096, 4096}));
  EXPECT_EQ(read("mistral", {{"sliding_window", 16}, {"layer_types", mixed}}), Windows({-2}));
  EXPECT_EQ(read("mistral", {{"sliding_window", 0}}), Windows({-3}));
  EXPECT_EQ(read("phi3", {{"sliding_window", 16}}), Windows({16, 16, 16}));
  EXPECT_EQ(read("phi3", {{"sliding_window", nullptr}}), Windows());
  EXPECT_EQ(read("phi3", nlohmann::json::object()), Windows());
  EXPECT_EQ(read("llama", {{"sliding_window", 16}}), Windows());
  EXPECT_EQ(read("llama", {{"sliding_window", 16}, {"use_sliding_window", true}}), Windows({-2}));
  EXPECT_EQ(read("qwen2", {{"sliding_window", 16}}), Windows());
  const nlohmann::json on = {{"sliding_window", 16}, {"use_sliding_window", true}};
  EXPECT_EQ(read("qwen2", on), Windows({-1, -1, -1}));  // the default: from layer 28 on
  nlohmann::json more = on;
  more["max_window_layers"] = 1;
  EXPECT_EQ(read("qwen3", more), Windows({-1, 16, 16}));
  more["layer_types"] = mixed;
  EXPECT_EQ(read("qwen2", more), Windows({-1, 16, -1}));
  more["layer_types"] = {"full_attention"};
  EXPECT_EQ(read("qwen2", more), Windows({-3}));
  more["layer_types"] = {"full_attention", "full_attention", "linear_attention"};
  EXPECT_EQ(read("qwen2", more), Windows({-2}));
}

// Both spellings, and Transformers' defaults.
TEST(HfConfig, Gemma3) {
  const nlohmann::json base = {
      {"model_type", "gemma3_text"},  {"hidden_size", 64},      {"num_attention_heads", 2}, {"num_key_value_heads", 1},
      {"intermediate_size", 8},       {"num_hidden_layers", 3}, {"vocab_size", 32},         {"head_dim", 32},
      {"max_position_embeddings", 64}};
  const auto read = [&](const nlohmann::json& more) {
    nlohmann::json config = base;
    config.update(more);
    return read_hf_config(config, "c");
  };
  const auto plain = read(nlohmann::json::object());
  ASSERT_TRUE(plain.ok()) << plain.error().message;
  const ModelConfig& c = plain->config;
  EXPECT_EQ(c.arch, "gemma3");
  EXPECT_EQ(c.window, std::vector<int>({4096, 4096, 4096}));
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.local_rope.theta, 1e4);
  EXPECT_EQ(c.attention_scale, 1.0f / 16);
  EXPECT_TRUE(c.norms_plus_one && c.tied_embeddings && c.qk_norm && c.post_norms);
  EXPECT_EQ(c.final_softcap, 0);

  const auto older = read({{"sliding_window", 9},
                           {"sliding_window_pattern", 2},
                           {"rope_theta", 3e5},
                           {"rope_local_base_freq", 700},
                           {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}}});
  const auto newer = read({{"sliding_window", 9},
                           {"layer_types", {"sliding_attention", "full_attention", "sliding_attention"}},
                           {"rope_parameters",
                            {{"full_attention", {{"rope_type", "linear"}, {"factor", 8}, {"rope_theta", 3e5}}},
                             {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 700}}}}}});
  ASSERT_TRUE(older.ok() && newer.ok());
  for (const auto* one : {&older->config, &newer->config}) {
    EXPECT_EQ(one->window, std::vector<int>({9, -1, 9}));
    EXPECT_NEAR(one->rope.inv_freq[1], std::pow(3e5, -1.0 / 16) / 8, 1e-12);
    EXPECT_NEAR(one->local_rope.inv_freq[1], std::pow(700, -1.0 / 16), 1e-12);
  }
  // Both kinds alike may rotate a part of a head.
  const nlohmann::json half = {{"partial_rotary_factor", 0.5}};
  const auto alike = read({{"rope_parameters", {{"full_attention", half}, {"sliding_attention", half}}}});
  ASSERT_TRUE(alike.ok()) << alike.error().message;
  EXPECT_EQ(alike->config.rope.rotary_dim, 16);
  EXPECT_EQ(alike->config.local_rope.rotary_dim, 16);
  for (const auto& [more, part] : std::vector<std::pair<nlohmann::json, const char*>>{
           {{{"hidden_activation", "gelu"}}, "hidden_activation 'gelu'"},
           {{{"attn_logit_softcapping", 50.0}}, "attn_logit_softcapping"},
           {{{"rope_parameters",
              {{"full_attention", {{"rope_theta", 1e6}}},
               {"sliding_attention", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}}}}},
            "rotates 16 elements of a head where that of global ones rotates 32"},
           {{{"rope_parameters",
              {{"full_attention", {{"partial_rotary_factor", 0.5}}}, {"sliding_attention", {{"rope_theta", 1e4}}}}}},
            "rotates 32 elements of a head where that of global ones rotates 16"},
           {{{"rope_parameters",
              {{"full_attention", {{"rope_theta", 1e6}}},
               {"sliding_attention", {{"rope_type", "dynamic"}, {"factor", 2}}}}}},
            "depends on the length"},
           {{{"rope_scaling", {{"rope_type", "longrope"}, {"short_factor", std::vector<double>(16, 1)}}}},
            "depends on the length"},
           {{{"use_bidirectional_attention", true}}, "use_bidirectional_attention"}}) {
    const auto refused = read(more);
    ASSERT_FALSE(refused.ok()) << part;
    EXPECT_EQ(refused.error().code, Code::kUnsupported);
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
}

TEST(HfConfig, ExpertsPerLayer) {
  nlohmann::json config = {{"model_type", "qwen3_moe"},      {"hidden_size", 64},      {"num_attention_heads", 8},
                           {"intermediate_size", 96},        {"num_hidden_layers", 4}, {"vocab_size", 32},
                           {"max_position_embeddings", 128}, {"num_experts", 8},       {"num_experts_per_tok", 2},
                           {"moe_intermediate_size", 32}};
  const auto sparse = [&] { return read_hf_config(config, "c")->config.experts.sparse; };
  using Sparse = std::vector<uint8_t>;
  EXPECT_EQ(sparse(), Sparse({1, 1, 1, 1}));
  EXPECT_FALSE(read_hf_config(config, "c")->config.experts.renormalise);
  EXPECT_EQ(read_hf_config(config, "c")->config.experts.F, 32);
  config["decoder_sparse_step"] = 2;
  EXPECT_EQ(sparse(), Sparse({0, 1, 0, 1}));
  config["mlp_only_layers"] = {3, 9};
  EXPECT_EQ(sparse(), Sparse({0, 1, 0, 0}));
  config["mlp_only_layers"] = {-1};
  EXPECT_EQ(read_hf_config(config, "c").error().code, Code::kCorrupt);
  config["mlp_only_layers"] = nullptr;
  config["num_experts_per_tok"] = 9;
  EXPECT_EQ(read_hf_config(config, "c").error().code, Code::kCorrupt);
  config["model_type"] = "mixtral";
  config["num_experts_per_tok"] = 2;
  const auto mixtral = read_hf_config(config, "c");
  ASSERT_TRUE(mixtral.ok());
  EXPECT_EQ(mixtral->config.experts.F, 96);
  EXPECT_TRUE(mixtral->config.experts.renormalise);
  EXPECT_EQ(mixtral->config.experts.sparse, Sparse({1, 1, 1, 1}));
  EXPECT_TRUE(mixtral->config.window.empty());  // mistral's default would be 4096
}

}  // namespace
}  // namespace kvilt
