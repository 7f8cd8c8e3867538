// What files advise about sampling: every setting by itself, and nothing that is wrong gets through.
#include "model/read_sampling.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/model_file.h"
#include "model/tiny_gguf_for_test.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

constexpr SamplingDefaults kAdvised{
    .temperature = 0.7f, .top_p = 0.8f, .min_p = 0.05f, .repetition_penalty = 1.05f, .top_k = 20};

ReadSampling read_json(const std::string& text) {
  return read_hf_sampling(nlohmann::json::parse(text), "generation_config.json");
}

// The probe, with a generation_config.json.
class ProbeFolder {
 public:
  ProbeFolder() : path_(fs::temp_directory_path() / ("kvilt_sampling_" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
    for (const char* name : {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"})
      fs::copy_file(fs::path("tests/data/models/probe-1M") / name, path_ / name, fs::copy_options::overwrite_existing);
  }
  ~ProbeFolder() { fs::remove_all(path_); }
  std::string config() const { return path_ / "generation_config.json"; }
  Result<std::unique_ptr<ModelFile>> open_with(const std::string& text) const {
    std::ofstream(config(), std::ios::binary) << text;
    return open_model(path_);
  }
  Result<std::unique_ptr<ModelFile>> open() const { return open_model(path_); }

 private:
  const fs::path path_;
};

TEST(ReadSampling, EverySettingOfAFolder) {
  const ReadSampling read = read_json(R"({"temperature": 0.7, "top_p": 0.8, "min_p": 0.05, "top_k": 20,
      "repetition_penalty": 1.05, "do_sample": true, "typical_p": 0.5, "max_new_tokens": 9})");
  EXPECT_EQ(read.defaults, kAdvised);
  EXPECT_TRUE(read.warnings.empty());
  EXPECT_EQ(read_json("{}").defaults, SamplingDefaults{});
  EXPECT_EQ(read_json(R"({"temperature": null})").defaults, SamplingDefaults{});
  EXPECT_EQ(read_json(R"({"top_k": 0})").defaults, SamplingDefaults{.top_k = 0}) << "0 is said, unlike nothing";
  EXPECT_EQ(read_json("[1]").defaults, SamplingDefaults{});
}

TEST(ReadSampling, WithoutSamplingAnswersAreGreedyUnlessATemperatureIsNamed) {
  EXPECT_EQ(read_json(R"({"do_sample": false})").defaults, SamplingDefaults{.temperature = 0});
  EXPECT_EQ(read_json(R"({"do_sample": false, "top_k": 5})").defaults,
            (SamplingDefaults{.temperature = 0, .top_k = 5}));
  EXPECT_EQ(read_json(R"({"do_sample": false, "temperature": 0.5})").defaults, SamplingDefaults{.temperature = 0.5f});
  EXPECT_EQ(read_json(R"({"do_sample": true})").defaults, SamplingDefaults{}) << "power";
}

TEST(ReadSampling, WhatIsWrongIsLeftOutByName) {
  const std::pair<const char*, const char*> cases[] = {{R"("temperature": "hot")", "'temperature'"},
                                                       {R"("temperature": -0.1)", "'temperature'"},
                                                       {R"("temperature": 2.1)", "'temperature'"},
                                                       {R"("temperature": 1e300)", "'temperature'"},
                                                       {R"("temperature": true)", "'temperature'"},
                                                       {R"("temperature": [[[0.5]]])", "'temperature'"},
                                                       {R"("top_p": {"a": 1})", "'top_p'"},
                                                       {R"("top_p": 1.01)", "'top_p'"},
                                                       {R"("min_p": -1)", "'min_p'"},
                                                       {R"("top_k": 2.5)", "'top_k'"},
                                                       {R"("top_k": -2)", "'top_k'"},
                                                       {R"("top_k": 2147483648)", "'top_k'"},
                                                       {R"("top_k": 18446744073709551615)", "'top_k'"},
                                                       {R"("repetition_penalty": 0)", "'repetition_penalty'"},
                                                       {R"("repetition_penalty": 1e9)", "'repetition_penalty'"},
                                                       {R"("do_sample": "no")", "'do_sample'"}};
  for (const auto& [field, name] : cases) {
    // The setting beside it is read all the same.
    const bool beside_top_p = std::string(name) != "'top_p'";
    const std::string other = beside_top_p ? R"(, "top_p": 0.5)" : R"(, "min_p": 0.5)";
    const ReadSampling read = read_json("{" + std::string(field) + other + "}");
    const SamplingDefaults left = beside_top_p ? SamplingDefaults{.top_p = 0.5f} : SamplingDefaults{.min_p = 0.5f};
    EXPECT_EQ(read.defaults, left) << field;
    ASSERT_EQ(read.warnings.size(), 1u) << field;
    EXPECT_NE(read.warnings[0].find(name), std::string::npos) << read.warnings[0];
    EXPECT_TRUE(read.warnings[0].starts_with("generation_config.json: ")) << read.warnings[0];
    EXPECT_NE(read.warnings[0].find("left out"), std::string::npos) << read.warnings[0];
  }
}

TEST(ReadSampling, OfAFoldersFile) {
  const ProbeFolder folder;
  const auto none = folder.open();
  ASSERT_TRUE(none.ok());
  EXPECT_EQ((*none)->sampling, SamplingDefaults{}) << "power";
  const auto model = folder.open_with(R"({"temperature": 0.7, "top_p": 0.8, "min_p": 0.05, "top_k": 20,
      "repetition_penalty": 1.05, "eos_token_id": [3]})");
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ((*model)->sampling, kAdvised);
  EXPECT_TRUE((*model)->warnings.empty());
  EXPECT_EQ((*model)->fingerprint, (*none)->fingerprint) << "what is cached stays valid";
  const auto wrong = folder.open_with(R"({"temperature": -3, "top_k": 5})");
  ASSERT_TRUE(wrong.ok()) << "advice is no reason to refuse a model";
  EXPECT_EQ((*wrong)->sampling, SamplingDefaults{.top_k = 5});
  ASSERT_EQ((*wrong)->warnings.size(), 1u);
  EXPECT_NE((*wrong)->warnings[0].find(folder.config()), std::string::npos);
}

// The file names the end tokens too, so one that cannot be read is an error.
TEST(ReadSampling, FilesThatCannotBeReadAreErrors) {
  const ProbeFolder folder;
  const std::string deep(100'000, '[');
  for (const std::string& text :
       {std::string(R"({"temperature": NaN})"), std::string(R"({"temperature": 1e999})"), std::string("{"), deep,
        std::string(R"({"temperature": 1, "temperature": 0})"), std::string("{\"a\": \"\xff\"}")}) {
    const auto model = folder.open_with(text);
    ASSERT_FALSE(model.ok()) << text.substr(0, 40);
    EXPECT_NE(model.error().message.find(folder.config()), std::string::npos) << model.error().message;
  }
  ASSERT_TRUE(folder.open_with("{}").ok()) << "power";
  fs::resize_file(folder.config(), uint64_t{2} << 30);  // a hole: it takes no room on the disk
  const auto large = folder.open();
  ASSERT_FALSE(large.ok());
  EXPECT_NE(large.error().message.find(folder.config()), std::string::npos) << large.error().message;
}

TEST(ReadSampling, OfAGguf) {
  const fs::path path = fs::temp_directory_path() / ("kvilt_sampling_" + std::to_string(::getpid()) + ".gguf");
  const auto open_with = [&](std::function<void(GgufBytes&)> metadata) {
    TinyGguf tiny;
    tiny.metadata = std::move(metadata);
    std::ofstream(path, std::ios::binary) << tiny.build();
    auto model = open_model(path);
    fs::remove(path);
    EXPECT_TRUE(model.ok()) << model.error().message;
    return std::move(model).value();
  };
  const std::string prefix = "general.sampling.";
  const auto good = open_with([&](GgufBytes& b) {
    b.f32(prefix + "temp", 0.7f).f32(prefix + "top_p", 0.8f).f32(prefix + "min_p", 0.05f);
    b.value(prefix + "top_k", GgufType::kI32, GgufBytes::raw<int32_t>(20));
    b.f32(prefix + "penalty_repeat", 1.05f).u32(prefix + "mirostat", 2);
  });
  EXPECT_EQ(good->sampling, kAdvised);
  EXPECT_TRUE(good->warnings.empty());
  const auto none = open_with([](GgufBytes&) {});
  EXPECT_EQ(none->sampling, SamplingDefaults{}) << "power";
  EXPECT_EQ(none->fingerprint, good->fingerprint);
  const auto wrong = open_with([&](GgufBytes& b) {
    b.f32(prefix + "temp", NAN).string(prefix + "top_p", "x").f32(prefix + "min_p", -INFINITY);
    b.f32(prefix + "top_k", 20).f32(prefix + "penalty_repeat", 1e30f);
  });
  EXPECT_EQ(wrong->sampling, SamplingDefaults{});
  ASSERT_EQ(wrong->warnings.size(), 5u);
  EXPECT_NE(wrong->warnings[0].find("'general.sampling.temp' must be a number from 0 to 2"), std::string::npos)
      << wrong->warnings[0];
}

}  // namespace
}  // namespace kvilt
