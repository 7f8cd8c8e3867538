// Compares angles with Transformers' (tests/fixtures/make_rope.py); settings that must be refused.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/mapped_file.h"
#include "model/json_text.h"
#include "model/read_config.h"

namespace kvilt {
namespace {

nlohmann::json whole_config(const nlohmann::json& fields) {
  nlohmann::json config = {{"model_type", "llama"},    {"hidden_size", 256},
                           {"num_attention_heads", 4}, {"head_dim", 64},
                           {"intermediate_size", 64},  {"num_hidden_layers", 1},
                           {"vocab_size", 32},         {"max_position_embeddings", 8192}};
  config.update(fields);
  return config;
}

TEST(Rope, AnglesEqualTransformers) {
  const auto text = read_file("tests/data/rope.json", 1 << 20);
  ASSERT_TRUE(text.ok()) << text.error().message;
  const auto json = parse_json(*text, "rope.json");
  ASSERT_TRUE(json.ok());
  std::set<std::vector<double>> distinct;
  for (const auto& c : (*json)["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const auto read = read_hf_config(whole_config(c["config"]), "config.json");
    ASSERT_TRUE(read.ok()) << read.error().message;
    const RopeConfig& rope = read->config.rope;
    const auto want = c["inv_freq"].get<std::vector<double>>();
    ASSERT_EQ(rope.inv_freq.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(rope.inv_freq[i] / want[i], 1, 2e-6) << i;  // theirs are fp32
    EXPECT_NEAR(rope.magnitude, c["magnitude"].get<double>(), 1e-12);
    EXPECT_EQ(rope.length_dependent, c["length_dependent"].get<bool>());
    EXPECT_EQ(rope.pairs, RopePairs::kHalves);
    distinct.insert(want);
  }
  EXPECT_GE(distinct.size(), 9u) << "power check: the settings must give different angles";
}

TEST(Rope, PartialRotaryTurnsTheFirstElementsOnly) {
  for (const auto& fields :
       {nlohmann::json{{"partial_rotary_factor", 0.25}},
        nlohmann::json{{"rope_parameters", {{"partial_rotary_factor", 0.25}, {"rope_theta", 10000}}}}}) {
    const auto read = read_hf_config(whole_config(fields), "config.json");
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->config.rope.rotary_dim, 16);
    ASSERT_EQ(read->config.rope.inv_freq.size(), 8u);
    EXPECT_DOUBLE_EQ(read->config.rope.inv_freq[1], std::pow(10000.0, -2.0 / 16));
  }
}

// LongRoPE: a sequence longer than the original context rotates by the long factors; without them there is none.
TEST(Rope, LongSequencesHaveAnglesOfTheirOwn) {
  nlohmann::json scaling = {{"rope_type", "longrope"},
                            {"short_factor", std::vector<double>(32, 1.5)},
                            {"long_factor", std::vector<double>(32, 4)},
                            {"original_max_position_embeddings", 1024}};
  const auto read = read_hf_config(whole_config({{"rope_scaling", scaling}}), "config.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  const ModelConfig& c = read->config;
  EXPECT_TRUE(c.rope.length_dependent && c.long_rope.length_dependent);
  EXPECT_EQ(c.context, 8192);
  EXPECT_EQ(&c.ropes(1024).at(0), &c.rope);
  EXPECT_EQ(&c.ropes(1025).at(0), &c.long_rope);
  EXPECT_NEAR(c.rope.inv_freq[1], std::pow(10000, -1.0 / 32) / 1.5, 1e-12);
  EXPECT_NEAR(c.long_rope.inv_freq[1], std::pow(10000, -1.0 / 32) / 4, 1e-12);
  EXPECT_EQ(c.long_rope.magnitude, c.rope.magnitude);
  EXPECT_NEAR(c.rope.magnitude, std::sqrt(1 + std::log(8.0) / std::log(1024.0)), 1e-12);
  scaling.erase("long_factor");
  const auto without = read_hf_config(whole_config({{"rope_scaling", scaling}}), "config.json");
  ASSERT_TRUE(without.ok()) << without.error().message;
  EXPECT_EQ(without->config.context, 1024);
  EXPECT_EQ(without->config.long_above, 0);
  // phi3's older names of it.
  for (const char* name : {"su", "yarn"}) {
    scaling["rope_type"] = name;
    const auto phi = read_hf_config(whole_config({{"rope_scaling", scaling}, {"model_type", "phi3"}}), "config.json");
    ASSERT_TRUE(phi.ok()) << phi.error().message;
    EXPECT_EQ(phi->config.rope.inv_freq, c.rope.inv_freq);
  }
}

TEST(Rope, RefusesSettingsThatContradictThemselves) {
  const struct {
    nlohmann::json scaling;
    Code code;
    const char* part;
  } cases[] = {
      {{{"rope_type", "spiral"}}, Code::kUnsupported, "spiral"},
      {{{"rope_type", "default"}, {"mrope_section", {1, 2}}}, Code::kUnsupported, "mrope"},
      {{{"rope_type", "linear"}, {"factor", 0}}, Code::kCorrupt, "factor"},
      {{{"rope_type", "linear"}, {"factor", -1}}, Code::kCorrupt, "factor"},
      {{{"rope_type", "linear"}, {"factor", "two"}}, Code::kCorrupt, "factor"},
      {{{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}},
       Code::kCorrupt,
       "high_freq"},
      {{{"rope_type", "yarn"}, {"factor", 2}, {"beta_fast", 0}}, Code::kCorrupt, "beta"},
      {{{"rope_type", "yarn"}, {"factor", 2}, {"original_max_position_embeddings", 1}}, Code::kCorrupt, "original"},
      {{{"rope_type", "longrope"}}, Code::kCorrupt, "short_factor"},
      {{{"rope_type", "longrope"}, {"short_factor", {1, 2}}}, Code::kCorrupt, "factor"},
      {{{"rope_type", "longrope"},
        {"short_factor", std::vector<double>(32, 1)},
        {"long_factor", {1, 2}},
        {"original_max_position_embeddings", 99}},
       Code::kCorrupt,
       "factor"},
      {{{"rope_type", "longrope"},
        {"short_factor", std::vector<double>(32, 0)},
        {"original_max_position_embeddings", 99}},
       Code::kCorrupt,
       "factor"},
      // What the kind does not use, and what it needs.
      {{{"factor", 4}}, Code::kUnsupported, "'factor' is 4"},
      {{{"rope_type", "default"}, {"factor", 4}}, Code::kUnsupported, "the kind 'default'"},
      {{{"rope_type", "linear"}, {"factor", 4}, {"attention_factor", 1.5}}, Code::kUnsupported, "'attention_factor'"},
      {{{"type", "linear"}}, Code::kCorrupt, "'factor' is missing, which the kind 'linear' needs"},
      {{{"rope_type", "llama3"}}, Code::kCorrupt, "'factor' is missing"},
      {{{"rope_type", "dynamic"}}, Code::kCorrupt, "'factor' is missing"},
      {{{"rope_type", "yarn"}}, Code::kCorrupt, "'factor' is missing"},
      {{{"rope_theta", 1}}, Code::kCorrupt, "rope_theta"},
      {{{"partial_rotary_factor", 0}}, Code::kCorrupt, "even number"},
      {{{"partial_rotary_factor", 0.05}}, Code::kCorrupt, "even number"},  // 3 elements
      {"yarn", Code::kCorrupt, "not an object"},
  };
  for (const auto& c : cases) {
    const auto read = read_hf_config(whole_config({{"rope_scaling", c.scaling}}), "the-config.json");
    ASSERT_FALSE(read.ok()) << c.scaling;
    EXPECT_EQ(read.error().code, c.code) << read.error().message;
    EXPECT_NE(read.error().message.find(c.part), std::string::npos) << read.error().message;
    EXPECT_NE(read.error().message.find("the-config.json"), std::string::npos) << read.error().message;
  }
}

}  // namespace
}  // namespace kvilt
