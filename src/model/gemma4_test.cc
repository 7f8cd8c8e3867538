// gemma 4's own settings from both kinds of files, and what is refused; what they compute: tests/parity_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <list>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/mapped_file.h"
#include "model/gguf_bytes_for_test.h"
#include "model/gguf_tokenizer.h"
#include "model/read_config.h"
#include "text/tokenizer.h"

namespace kvilt {
namespace {

nlohmann::json config_of(const std::string& fixture) {
  std::ifstream file("tests/data/fixtures/" + fixture + "/config.json");
  return nlohmann::json::parse(file);
}

TEST(Gemma4Config, TwoKindsOfLayers) {
  const auto read = read_hf_config(config_of("gemma4"), "config.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  const ModelConfig& c = read->config;
  EXPECT_EQ(c.arch, "gemma4");
  EXPECT_EQ(c.G, 4);  // the largest of all layers
  EXPECT_EQ(c.E, 16);
  EXPECT_EQ(c.heads, (std::vector<KvHeads>{{4, 8}, {2, 16}, {4, 8}, {2, 16}}));
  EXPECT_EQ(c.window, (std::vector<int>{24, -1, 24, -1}));
  EXPECT_EQ(c.v_is_k, (std::vector<uint8_t>{0, 1, 0, 1}));
  EXPECT_TRUE(c.v_norm && c.qk_norm && c.post_norms && c.layer_scales && c.tied_embeddings && !c.norms_plus_one);
  EXPECT_EQ(c.attention_scale, 1);
  EXPECT_EQ(c.final_softcap, 6);
  EXPECT_EQ(c.layer_input, 0);
}

// As Transformers saves a config: what differs by layer is under the layer's number.
TEST(Gemma4Config, SavedByTransformers) {
  nlohmann::json json = config_of("gemma4");
  const auto as_made = read_hf_config(json, "config.json");
  json.erase("global_head_dim");
  json.erase("num_global_key_value_heads");
  const nlohmann::json global{{"head_dim", 16}, {"num_key_value_heads", 2}};
  json["per_layer_config"] = {{"1", global}, {"3", global}};
  const auto saved = read_hf_config(json, "config.json");
  ASSERT_TRUE(saved.ok()) << saved.error().message;
  EXPECT_EQ(saved->config.heads, as_made->config.heads);
  EXPECT_EQ(saved->config.rope.inv_freq, as_made->config.rope.inv_freq);
  for (const nlohmann::json& wrong : {nlohmann::json(5), nlohmann::json{{"7", global}}, nlohmann::json{{"x", global}},
                                      nlohmann::json{{"1", 5}}, nlohmann::json{{"1", {{"head_dim", -1}}}}}) {
    json["per_layer_config"] = wrong;
    const auto refused = read_hf_config(json, "config.json");
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_NE(refused.error().message.find("per_layer_config"), std::string::npos) << refused.error().message;
  }
}

// A head of 8 in a layout of 16 has pairs (i, i + 8): four of its own, and four that stand still.
TEST(Gemma4Config, AnglesOfEachKindFillTheLayout) {
  const ModelConfig c = read_hf_config(config_of("gemma4"), "config.json")->config;
  ASSERT_EQ(c.rope.rotary_dim, 16);
  ASSERT_EQ(c.local_rope.rotary_dim, 16);
  for (int i = 0; i < 8; ++i) {
    EXPECT_NEAR(c.rope.inv_freq[i], i < 2 ? std::pow(1e6, -i / 8.0) : 0, 1e-12) << i;  // a quarter of the pairs
    EXPECT_NEAR(c.local_rope.inv_freq[i], i < 4 ? std::pow(1e4, -i / 4.0) : 0, 1e-12) << i;
  }
}

TEST(Gemma4Config, DefaultsAreTransformers) {
  nlohmann::json json = config_of("gemma4");
  for (const char* key : {"layer_types", "sliding_window", "rope_parameters", "final_logit_softcapping"})
    json.erase(key);
  json["num_hidden_layers"] = 8;
  const auto read = read_hf_config(json, "config.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->config.window,
            (std::vector<int>{512, 512, 512, 512, 512, -1, 512, -1}));  // every sixth, and the last
  EXPECT_EQ(read->config.rope.theta, 1e6);
  EXPECT_EQ(read->config.local_rope.theta, 1e4);
  EXPECT_EQ(read->config.final_softcap, 0);
  json["attention_k_eq_v"] = false;  // then num_global_key_value_heads says nothing
  const ModelConfig plain = read_hf_config(json, "config.json")->config;
  EXPECT_EQ(plain.heads_at(5), (KvHeads{4, 16}));
  EXPECT_TRUE(plain.v_is_k.empty());
}

TEST(Gemma4Config, RefusesByName) {
  const std::tuple<const char*, nlohmann::json, const char*> wrong[] = {
      {"model_type", "gemma4", "no object 'text_config'"},
      {"num_kv_shared_layers", 3, "reads the KV of an earlier layer"},
      {"num_kv_shared_layers", 5, "from 0 to 4"},
      {"per_layer_config", {{"1", {{"head_dim", 4}}}}, "layers of one kind that differ"},
      {"per_layer_config", {{"1", {{"hidden_size", 4}}}}, "per_layer_config with 'hidden_size'"},
      {"use_bidirectional_attention", "all", "use_bidirectional_attention 'all'"},
      {"hidden_activation", "silu", "hidden_activation 'silu'"},
      {"hidden_size_per_layer_input", 8, "vocab_size_per_layer_input"},
      {"num_global_key_value_heads", 3, "no multiple of 3"},
      {"layer_types", {"sliding_attention", "linear_attention", "sliding_attention", "full_attention"}, "layer_types"},
      {"rope_parameters",
       {{"full_attention", {{"rope_type", "yarn"}}}, {"sliding_attention", {{"rope_theta", 1e4}}}},
       "'yarn'"},
      {"rope_parameters",
       {{"full_attention", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}},
        {"sliding_attention", {{"rope_theta", 1e4}}}},
       "partial_rotary_factor"},
      {"rope_parameters", {{"rope_theta", 1e4}}, "sliding_attention"},
      {"quantization_config", {{"bits", 4}}, "quantization_config"}};
  for (const auto& [key, value, part] : wrong) {
    nlohmann::json json = config_of("gemma4");
    json[key] = value;
    const auto read = read_hf_config(json, "config.json");
    ASSERT_FALSE(read.ok()) << key;
    EXPECT_NE(read.error().message.find(part), std::string::npos) << read.error().message;
  }
  nlohmann::json json = config_of("gemma4");
  json["use_bidirectional_attention"] = "vision";  // concerns images only
  EXPECT_TRUE(read_hf_config(json, "config.json").ok());
  json["num_key_value_heads"] = 2;
  json["num_attention_heads"] = 6;
  json["num_global_key_value_heads"] = 3;
  const auto uneven = read_hf_config(json, "config.json");
  ASSERT_FALSE(uneven.ok());
  EXPECT_EQ(uneven.error().code, Code::kUnsupported) << uneven.error().message;
}

TEST(Gemma4Config, ExpertsAndLayerInputs) {
  nlohmann::json json = config_of("gemma4");
  json.update({{"enable_moe_block", true}, {"num_experts", 8}, {"top_k_experts", 2}, {"moe_intermediate_size", 16}});
  json.update({{"hidden_size_per_layer_input", 8}, {"vocab_size_per_layer_input", 288}});
  const auto read = read_hf_config(json, "config.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  const ExpertConfig& experts = read->config.experts;
  EXPECT_TRUE(experts.beside_dense && experts.renormalise && !experts.biases);
  EXPECT_EQ(experts.count, 8);
  EXPECT_EQ(experts.top_k, 2);
  EXPECT_EQ(experts.F, 16);
  EXPECT_TRUE(read->config.sparse(0) && read->config.sparse(3));
  EXPECT_EQ(read->config.layer_input, 8);
  json["hidden_size_per_layer_input"] = nullptr;
  EXPECT_EQ(read_hf_config(json, "config.json")->config.layer_input, 0);
  json["top_k_experts"] = 9;
  EXPECT_EQ(read_hf_config(json, "config.json").error().code, Code::kCorrupt);
}

// The last layers read the KV of the last one of their kind that has its own, and may have wider FFNs.
TEST(Gemma4Config, LayersThatReadOthersKv) {
  nlohmann::json json = config_of("gemma4-shared");
  const auto read = read_hf_config(json, "config.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  const ModelConfig& c = read->config;
  EXPECT_EQ(c.L, 6);
  EXPECT_EQ(c.kv_layers(), 3);
  EXPECT_EQ(c.kv_readers, (std::vector<uint16_t>{1, 1, 2}));  // local, local, global
  EXPECT_TRUE(c.writes_kv(2) && !c.writes_kv(3));
  EXPECT_EQ(c.kv_layer(5), 2);
  EXPECT_EQ(c.kv_layer(0), 0);
  EXPECT_EQ(c.ffn_widths, (std::vector<int>{32, 32, 32, 64, 64, 64}));
  json["use_double_wide_mlp"] = false;
  EXPECT_TRUE(read_hf_config(json, "config.json")->config.ffn_widths.empty());
}

class Gemma4Gguf : public testing::Test {
 protected:
  void SetUp() override {
    auto file = MappedFile::open("tests/data/fixtures-gguf/gemma4.gguf");
    ASSERT_TRUE(file.ok());
    file_.emplace(std::move(file).value());
    auto gguf = parse_gguf(file_->bytes(), "gemma4.gguf");
    ASSERT_TRUE(gguf.ok()) << gguf.error().message;
    gguf_ = std::move(gguf).value();
  }
  void set(const std::string& key, GgufType type, const std::string& payload, GgufType element = GgufType::kU8,
           uint64_t count = 1) {
    const std::string& kept = payloads_.emplace_back(payload);
    gguf_.metadata[key] = {type, element, count, std::as_bytes(std::span(kept))};
  }
  void set(const std::string& key, uint32_t x) { set(key, GgufType::kU32, GgufBytes::raw(x)); }
  std::string refusal() {
    const auto read = read_gguf_config(gguf_, "gemma4.gguf");
    return read.ok() ? "" : read.error().message;
  }
  std::optional<MappedFile> file_;
  GgufFile gguf_;
  std::list<std::string> payloads_;
};

TEST_F(Gemma4Gguf, SaysWhatTheFolderSays) {
  const auto read = read_gguf_config(gguf_, "gemma4.gguf");
  ASSERT_TRUE(read.ok()) << read.error().message;
  const ModelConfig &a = read->config, b = read_hf_config(config_of("gemma4"), "config.json")->config;
  EXPECT_EQ(a.heads, b.heads);
  EXPECT_EQ(a.window, b.window);
  EXPECT_EQ(a.local_layers, b.local_layers);
  EXPECT_EQ(a.v_is_k, b.v_is_k);
  EXPECT_EQ(a.rope.inv_freq, b.rope.inv_freq);
  EXPECT_EQ(a.local_rope.inv_freq, b.local_rope.inv_freq);
  EXPECT_TRUE(a.layer_scales);
  EXPECT_EQ(a.final_softcap, b.final_softcap);
  EXPECT_EQ(a.F, b.F);
  EXPECT_TRUE(a.ffn_widths.empty());
}

TEST_F(Gemma4Gguf, WidthsAreByLayer) {
  const auto list = [&](std::vector<uint32_t> widths) {
    std::string payload;
    for (const uint32_t F : widths) payload += GgufBytes::raw(F);
    set("gemma4.feed_forward_length", GgufType::kArray, payload, GgufType::kU32, widths.size());
  };
  list({64, 64, 128, 128});
  EXPECT_EQ(read_gguf_config(gguf_, "f")->config.ffn_widths, (std::vector<int>{64, 64, 128, 128}));
  list({64, 64, 128});
  EXPECT_NE(refusal().find("a list of 4"), std::string::npos) << refusal();
}

TEST_F(Gemma4Gguf, RefusesByName) {
  const std::pair<const char*, uint32_t> wrong[] = {
      {"gemma4.attention.shared_kv_layers", 3},       {"gemma4.rope.dimension_count", 4},
      {"gemma4.rope.dimension_count_swa", 4},         {"gemma4.attention.value_length_swa", 4},
      {"gemma4.attention.sliding_window_pattern", 2}, {"gemma4.attention.key_length_swa", 7}};
  for (const auto& [key, value] : wrong) {
    const GgufFile before = gguf_;
    set(key, value);
    const std::string name(key);
    const std::string part = name.ends_with("key_length_swa")     ? "value_length_swa"  // heads of one layer differ
                             : name.ends_with("shared_kv_layers") ? "reads the KV of an earlier layer"
                                                                  : name.substr(name.rfind('.') + 1);
    EXPECT_NE(refusal().find(part), std::string::npos) << key << ": " << refusal();
    gguf_ = before;
  }
  for (const char* key : {"rope.scaling.factor", "rope.scaling.attn_factor"}) {  // without a type
    const GgufFile before = gguf_;
    set(std::string("gemma4.") + key, GgufType::kF32, GgufBytes::raw(4.0f));
    EXPECT_NE(refusal().find(std::string("a ") + key), std::string::npos) << refusal();
    gguf_ = before;
  }
  set("gemma4.rope.scaling.type", GgufType::kString, GgufBytes::text("yarn"));
  EXPECT_NE(refusal().find("rope.scaling.type 'yarn'"), std::string::npos) << refusal();
}

// Merges over characters, spaces as marks, bytes for what the vocabulary lacks.
TEST(Gemma4Tokenizer, IsBpeOverCharacters) {
  std::vector<std::string> tokens = {"<pad>",
                                     "<bos>",
                                     "\xe2\x96\x81",
                                     "a",
                                     "b",
                                     "ab",
                                     "\xe2\x96\x81"
                                     "ab",
                                     "\n",
                                     "\n\n",
                                     "<turn|>"};
  std::vector<int32_t> kinds = {3, 3, 1, 1, 1, 1, 1, 1, 1, 3};
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(fmt::format("<0x{:02X}>", byte));
    kinds.push_back(6);
  }
  GgufBytes bytes;
  bytes.string("tokenizer.ggml.model", "gemma4").string("tokenizer.ggml.pre", "anything");
  bytes.strings("tokenizer.ggml.tokens", tokens).numbers("tokenizer.ggml.token_type", GgufType::kI32, kinds);
  bytes.strings("tokenizer.ggml.merges", {"a b", "\xe2\x96\x81 ab", "\n \n"}).u32("tokenizer.ggml.bos_token_id", 1);
  const std::string file = bytes.build();
  const auto gguf = parse_gguf(std::as_bytes(std::span(file)), "t.gguf");
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  auto spec = read_gguf_tokenizer(*gguf, "t.gguf");
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_TRUE(spec->add_bos);
  const auto tokenizer = Tokenizer::create(std::move(spec).value());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  const std::string text = "ab ab\n\n\xc3\xa9 a";
  const auto ids = (*tokenizer)->encode(text);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(*ids, (std::vector<int32_t>{5, 6, 8, 10 + 0xc3, 10 + 0xa9, 2, 3}));
  EXPECT_EQ((*tokenizer)->decode(*ids), text);
  EXPECT_EQ((*tokenizer)->end_ids().front(), 9);  // a turn's end, which the file names nowhere
}

}  // namespace
}  // namespace kvilt
