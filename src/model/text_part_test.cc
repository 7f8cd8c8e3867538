// The text part of a multimodal folder is the text model that it was made of, to the byte.
#include "model/text_part.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/model_file.h"
#include "model/multimodal_for_test.h"
#include "model/read_config.h"

namespace kvilt {
namespace {

using Json = nlohmann::json;
using Change = MultimodalFolder::Change;

std::unique_ptr<ModelFile> open_folder(const std::string& path) {
  auto model = open_model(path);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return model.ok() ? std::move(model).value() : nullptr;
}

class TextPart : public testing::TestWithParam<const char*> {};

// The fingerprint names config, tensors and contents.
TEST_P(TextPart, IsTheTextModel) {
  const auto text = open_folder(std::string("tests/data/fixtures/") + GetParam());
  ASSERT_TRUE(text);
  for (const bool older : {false, true}) {
    const MultimodalFolder folder(GetParam(), {.older_names = older});
    const auto part = open_folder(folder.path());
    ASSERT_TRUE(part);
    EXPECT_EQ(part->fingerprint, text->fingerprint) << older;
    EXPECT_EQ(part->config.arch, text->config.arch);
    EXPECT_EQ(part->config.eos_ids, text->config.eos_ids);
    EXPECT_EQ(part->description, text->description + "; text only: 2 tensors for images or audio are left out");
    EXPECT_EQ(text->description.find("left out"), std::string::npos) << "power";
  }
  const auto other_tower = open_folder(MultimodalFolder(GetParam(), {.tower_byte = true}).path());
  EXPECT_EQ(other_tower->fingerprint, text->fingerprint);
  const auto other_text = open_folder(MultimodalFolder(GetParam(), {.text_byte = true}).path());
  EXPECT_NE(other_text->fingerprint, text->fingerprint) << "power";
}

INSTANTIATE_TEST_SUITE_P(Fixtures, TextPart,
                         testing::Values("gemma3", "gemma3-nested", "gemma4", "gemma4-inputs", "gemma4-moe",
                                         "gemma4-shared"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(TextPartConfig, WhatTransformersLeavesOutIsItsDefault) {
  const auto gemma3 = read_hf_config({{"model_type", "gemma3"},
                                      {"text_config",
                                       {{"model_type", "gemma3_text"},
                                        {"hidden_size", 2560},
                                        {"intermediate_size", 10240},
                                        {"num_hidden_layers", 34},
                                        {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                                        {"sliding_window", 1024}}}},
                                     "c");  // Gemma 3 4B's, as it came
  ASSERT_TRUE(gemma3.ok()) << gemma3.error().message;
  const ModelConfig& c = gemma3->config;
  EXPECT_EQ(std::vector<int>({c.D, c.H, c.G, c.E, c.F, c.L, c.V, c.context}),
            std::vector<int>({2560, 8, 4, 256, 10240, 34, 262208, 131072}));
  EXPECT_TRUE(c.tied_embeddings);
  const auto gemma4 = read_hf_config(
      {{"model_type", "gemma4"}, {"text_config", {{"hidden_size_per_layer_input", 0}, {"num_hidden_layers", 12}}}},
      "c");
  ASSERT_TRUE(gemma4.ok()) << gemma4.error().message;
  const ModelConfig& d = gemma4->config;
  EXPECT_EQ(d.arch, "gemma4");
  EXPECT_EQ(std::vector<int>({d.D, d.H, d.G, d.E, d.F, d.L, d.V, d.context}),
            std::vector<int>({2304, 8, 4, 512, 9216, 12, 262144, 131072}));
}

TEST(TextPartConfig, RefusesByName) {
  const std::pair<std::function<void(Json&)>, const char*> cases[] = {
      {[](Json& c) { c.erase("text_config"); }, "no object 'text_config'"},
      {[](Json& c) { c["text_config"] = nullptr; }, "no object 'text_config'"},
      {[](Json& c) { c["text_config"] = Json::array({c["text_config"]}); }, "no object 'text_config'"},
      {[](Json& c) { c["text_config"]["model_type"] = "gemma4"; }, "text_config: model_type 'gemma4'"},
      {[](Json& c) { c["text_config"]["model_type"] = 4; }, "text_config: 'model_type' must be a text"},
      {[](Json& c) { c["text_config"]["model_type"] = "gemma3_text"; }, "model_type 'gemma3_text' in a gemma4"},
      {[](Json& c) { c["text_config"]["hidden_size"] = "wide"; }, "text_config: 'hidden_size'"},
      {[](Json& c) { c["tie_word_embeddings"] = false; }, "'tie_word_embeddings'"},
      {[](Json& c) {
         c["quantization_config"] = {{"quant_method", "fp8"}};
       },
       "quantization_config"}};
  for (const auto& [change, part] : cases) {
    const MultimodalFolder folder("gemma4", {.config = change});
    const auto model = open_model(folder.path());
    ASSERT_FALSE(model.ok()) << part;
    EXPECT_NE(model.error().message.find(part), std::string::npos) << model.error().message;
    EXPECT_NE(model.error().message.find(folder.path()), std::string::npos) << model.error().message;
  }
}

TEST(TextPartTensors, RefusesByName) {
  const std::pair<std::function<std::string(const std::string&)>, const char*> cases[] = {
      {[](const std::string& name) { return name; }, "begins with 'model.language_model.'"},
      {[](const std::string& name) {
         return name == "model.norm.weight" ? "x.norm.weight" : "model.language_model." + name.substr(6);
       },
       "text part: tensor 'model.norm.weight' is missing"},
      {[](const std::string& name) {
         return (name == "model.norm.weight" ? "language_model.model." : "model.language_model.") +
                (name == "model.norm.weight" ? std::string("embed_tokens.weight") : name.substr(6));
       },
       "another one of the text model has its name"}};
  for (const auto& [rename, part] : cases) {
    const MultimodalFolder folder("gemma4", {.rename = rename});
    const auto model = open_model(folder.path());
    ASSERT_FALSE(model.ok()) << part;
    EXPECT_EQ(model.error().code, Code::kCorrupt);
    EXPECT_NE(model.error().message.find(part), std::string::npos) << model.error().message;
  }
}

}  // namespace
}  // namespace kvilt
