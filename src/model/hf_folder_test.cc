// Whole folders, as Hugging Face has them: templates, end ids, added tokens, shards, and what must be there.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "model/json_text.h"
#include "model/model_file.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

class HfFolder : public ::testing::Test {
 protected:
  ~HfFolder() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  void copy(const std::string& source) {
    for (const auto& entry : fs::directory_iterator(source)) {
      fs::copy_file(entry.path(), folder_ / entry.path().filename(), fs::copy_options::overwrite_existing);
    }
  }
  nlohmann::json json(const std::string& name) {
    return *parse_json(*read_file((folder_ / name).string(), 1 << 24), name);
  }
  void change(const std::string& name, const std::function<void(nlohmann::json&)>& edit) {
    auto document = json(name);
    edit(document);
    write(name, document.dump());
  }
  Result<std::unique_ptr<ModelFile>> open() { return open_model(folder_.string()); }
  const fs::path folder_ = [] {
    const fs::path path = fs::temp_directory_path() / ("kvilt_folder_" + std::to_string(::getpid()));
    fs::create_directories(path);
    return path;
  }();
};

TEST_F(HfFolder, TemplatesAndEndIdsFromEveryPlace) {
  copy("tests/data/fixtures/llama");
  change("tokenizer_config.json", [](auto& c) {
    c["chat_template"] = {{{"name", "tool_use"}, {"template", "T"}}, {{"name", "default"}, {"template", "D"}}};
    c["eos_token"] = {{"content", "<|im_start|>"}};
  });
  write("generation_config.json", R"({"eos_token_id": [7, 9, 7]})");
  auto model = open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ((*model)->chat_template, "D");
  EXPECT_EQ((*model)->tools_template, "T");
  EXPECT_EQ((*model)->config.eos_token, "<|im_start|>");
  for (const int id : {7, 9, 257}) {
    const auto& ids = (*model)->config.eos_ids;
    EXPECT_EQ(std::ranges::count(ids, id), 1) << id;
  }
  write("chat_template.jinja", "J");
  model = open();
  ASSERT_TRUE(model.ok());
  EXPECT_EQ((*model)->chat_template, "J");
  EXPECT_EQ((*model)->tools_template, "") << "what the config has is not read";
  fs::create_directories(folder_ / "additional_chat_templates");
  write("additional_chat_templates/tool_use.jinja", "U");
  write("additional_chat_templates/rag.jinja", "R");
  model = open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ((*model)->chat_template, "J");
  EXPECT_EQ((*model)->tools_template, "U");
  fs::remove(folder_ / "chat_template.jinja");
  model = open();
  ASSERT_TRUE(model.ok());
  EXPECT_EQ((*model)->chat_template, "D") << "no file has that one";
  EXPECT_EQ((*model)->tools_template, "U");
  write("additional_chat_templates/tool_use.jinja", "\xFF");
  model = open();
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.error().message.find("tool_use.jinja: not UTF-8"), std::string::npos) << model.error().message;
  fs::remove_all(folder_ / "additional_chat_templates");
  write("generation_config.json", R"({"eos_token_id": 288})");
  model = open();
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.error().message.find("end-of-text id 288"), std::string::npos) << model.error().message;
  write("generation_config.json", R"({"eos_token_id": [-1]})");
  EXPECT_FALSE(open().ok());
}

// gemma-3-1b-it has the token of images at an id that has no row; so have fine-tunes their padding token.
TEST_F(HfFolder, AddedTokensBeyondTheEmbeddingAreLeftOut) {
  copy("tests/data/fixtures/llama");
  auto whole = open();
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  EXPECT_TRUE((*whole)->warnings.empty());
  const int rows = (*whole)->config.V;
  const auto add = [&](const char* text, int id) {
    change("tokenizer.json", [&](auto& t) {
      t["added_tokens"].push_back({{"id", id}, {"content", text}, {"special", true}});
    });
  };
  add("<image_soft_token>", rows);
  add("[PAD]", rows + 3);
  auto model = open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_LE((*model)->tokenizer->vocab_size(), rows);
  EXPECT_EQ((*model)->tokenizer->id_of("<image_soft_token>"), std::nullopt);
  ASSERT_EQ((*model)->warnings.size(), 1u);
  EXPECT_NE((*model)->warnings[0].find("2 added tokens, the first is '<image_soft_token>'"), std::string::npos)
      << (*model)->warnings[0];
  const std::string text = "<image_soft_token> a[PAD]b";
  EXPECT_EQ(*(*model)->tokenizer->encode(text, {.parse_special = true}), *(*whole)->tokenizer->encode(text));
  // What the model is to write has to have a row, and so has what is merged from texts.
  change("tokenizer_config.json", [](auto& c) { c["eos_token"] = "[PAD]"; });
  model = open();
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.error().message.find("the EOS token"), std::string::npos) << model.error().message;
  copy("tests/data/fixtures/llama");
  change("tokenizer.json", [&](auto& t) { t["model"]["vocab"]["qqq"] = rows + 1; });
  add("[PAD]", rows);
  model = open();
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.error().message.find("the embedding"), std::string::npos) << model.error().message;
}

// A commit is no name, and an empty one can be asked for by nobody.
TEST_F(HfFolder, IsNamedByItsPlaceWhereItsFilesNameNothing) {
  copy("tests/data/fixtures/llama");
  change("config.json", [](auto& c) { c.erase("_name_or_path"); });
  const auto name_of = [](const std::string& asked) {
    const auto model = open_model(asked);
    return model.ok() ? (*model)->config.name : "error: " + model.error().message;
  };
  const std::string folder = folder_.filename().string();
  EXPECT_EQ(name_of(folder_.string()), folder);
  EXPECT_EQ(name_of(folder_.string() + "/"), folder);
  EXPECT_EQ(name_of((folder_ / "." / "").string()), folder);
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  EXPECT_EQ(name_of("."), folder);
  fs::current_path(before);
  const fs::path snapshot = folder_ / "models--org--tiny-1" / "snapshots" / std::string(40, 'a');
  fs::create_directories(snapshot);
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.is_regular_file()) fs::copy_file(entry.path(), snapshot / entry.path().filename());
  }
  ::setenv("HF_HUB_CACHE", folder_.c_str(), 1);
  EXPECT_EQ(name_of("org/tiny-1"), "org/tiny-1");
  ::unsetenv("HF_HUB_CACHE");
  EXPECT_EQ(name_of(snapshot.string()), "org/tiny-1") << "what kvilt pull prints";
  change("config.json", [](auto& c) { c["_name_or_path"] = "somebody/says"; });
  EXPECT_EQ(name_of(folder_.string() + "/"), "somebody/says");
}

TEST_F(HfFolder, SaysWhichTypesItReads) {
  copy("tests/data/fixtures/llama");
  std::string bytes = *read_file((folder_ / "model.safetensors").string(), 1 << 24);
  ASSERT_NE(bytes.find("\"F32\""), std::string::npos);
  for (size_t at = 0; (at = bytes.find("\"F32\"", at)) != std::string::npos;) bytes.replace(at, 5, "\"F64\"");
  write("model.safetensors", bytes);
  const auto model = open();
  ASSERT_FALSE(model.ok());
  EXPECT_TRUE(model.error().message.ends_with("has type F64; this build reads F32, F16, BF16"))
      << model.error().message;
}

TEST_F(HfFolder, ShardsComeFromTheFolderOnly) {
  copy("tests/data/fixtures/qwen3");
  ASSERT_TRUE(open().ok());
  const nlohmann::json good = json("model.safetensors.index.json");
  for (const char* shard :
       {"../model-00001-of-00002.safetensors", "/etc/passwd", "config.json", "absent.safetensors"}) {
    nlohmann::json bad = good;
    bad["weight_map"].begin().value() = shard;
    write("model.safetensors.index.json", bad.dump());
    EXPECT_FALSE(open().ok()) << shard;
  }
  nlohmann::json one_left = good;  // the other shard's tensors are missing
  for (auto& [name, shard] : one_left["weight_map"].items()) shard = "model-00001-of-00002.safetensors";
  write("model.safetensors.index.json", one_left.dump());
  const auto model = open();
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.error().message.find("is missing"), std::string::npos) << model.error().message;
}

TEST_F(HfFolder, EveryExpertMustBeThere) {
  copy("tests/data/fixtures/mixtral");
  ASSERT_TRUE(open().ok());
  change("config.json", [](auto& c) { c["num_local_experts"] = 3; });
  auto model = open();
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.error().message.find("block_sparse_moe.gate.weight' is 4 x 32; the configuration says 3 x 32"),
            std::string::npos)
      << model.error().message;
  change("config.json", [](auto& c) { c["num_local_experts"] = 4; });
  change("config.json", [](auto& c) { c["model_type"] = "llama"; });
  model = open();
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.error().message.find("mlp.gate_proj.weight' is missing"), std::string::npos) << model.error().message;
}

TEST_F(HfFolder, BiasesThatTheConfigPromisesMustBeThere) {
  copy("tests/data/fixtures/llama");
  ASSERT_TRUE(open().ok());
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    copy("tests/data/fixtures/llama");
    change("config.json", [&](auto& c) { c[key] = true; });
    const auto model = open();
    ASSERT_FALSE(model.ok());
    EXPECT_NE(model.error().message.find(".bias' is missing"), std::string::npos) << model.error().message;
  }
}

}  // namespace
}  // namespace kvilt
