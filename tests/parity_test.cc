// Compares the driver's dense plan with what Transformers (or a double-precision reference) computed.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine_harness.h"
#include "kernels/dispatch.h"

namespace kvilt {
namespace {

struct ParityCase {
  std::string model, parity;
};

std::vector<ParityCase> cases() {
  const std::string models = "tests/data/models/";
  std::vector<ParityCase> out{{models + "probe-1M", models + "probe-1M/parity.json"},
                              {models + "stories260K/derived-hf", models + "stories260K/parity.json"},
                              {models + "stories260K/derived-stories260K-F32.gguf", models + "stories260K/parity.json"},
                              {models + "llama3-atto-1M/derived-hf", models + "llama3-atto-1M/parity.json"}};
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/fixtures")) {
    if (entry.is_directory() && std::filesystem::exists(entry.path() / "parity.json")) {
      out.push_back({entry.path().string(), (entry.path() / "parity.json").string()});
    }
  }
  // The same weights in GGUF.
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/fixtures-gguf")) {
    out.push_back({entry.path().string(), "tests/data/fixtures/" + entry.path().stem().string() + "/parity.json"});
  }
  return out;
}

// Every backend that this machine runs.
std::vector<std::string> backends() {
  const std::vector<std::string_view> names = backend_names();
  return {names.begin(), names.end()};
}

class Parity : public testing::TestWithParam<std::tuple<ParityCase, std::string>> {};

TEST_P(Parity, LogitsAndGreedyTokens) {
  const auto& [model, backend] = GetParam();
  // f32: rounded keys are 1e-2 away (kv_types_test.cc), and BF16 weights would round rows.
  auto engine = open_for_test(
      {.model = model.model, .backend = backend, .kv_type = KvType::kF32, .activations = ActivationType::kF32});
  ASSERT_TRUE(engine);
  std::ifstream file(model.parity);
  ASSERT_TRUE(file) << model.parity;
  const auto parity = nlohmann::json::parse(file);
  for (const auto& entry : parity["cases"]) {
    const auto greedy = entry["greedy"].get<std::vector<int32_t>>();
    const auto out = ask_ok(
        *engine, request_of(entry["tokens"].get<std::vector<int32_t>>(), "full", static_cast<int>(greedy.size())));
    double most = 0;
    for (const auto& pair : entry["top_logits"]) {
      most = std::max(most, std::abs(pair[1].get<double>() - out.completion.logits.first[pair[0].get<size_t>()]));
    }
    EXPECT_LT(most, 1e-3) << entry["name"];
    EXPECT_EQ(out.ids, greedy) << entry["name"];
  }
}

std::string case_and_backend(const testing::TestParamInfo<std::tuple<ParityCase, std::string>>& info) {
  std::string name = std::get<0>(info.param).model + "_" + std::get<1>(info.param);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Parity, testing::Combine(testing::ValuesIn(cases()), testing::ValuesIn(backends())),
                         case_and_backend);

}  // namespace
}  // namespace kvilt
