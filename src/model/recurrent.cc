#include "model/recurrent.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>

namespace kvilt {
namespace {

constexpr const char *kMamba = "Mamba", *kDelta = "gated delta nets", *kWkv = "RWKV's time mixing", *kLru = "RG-LRU",
                     *kConv = "short convolutions", *kLinear = "linear attention", *kLstm = "xLSTM";

struct Sign {
  const char *text, *what;
};

// Beginnings of names without marks and in lower case: qwen3_5_moe and qwen35moe are one family.
constexpr Sign kFamilies[] = {
    {"mamba", kMamba},      {"falconmamba", kMamba}, {"falconh1", kMamba},      {"jamba", kMamba},
    {"bamba", kMamba},      {"zamba", kMamba},       {"granitehybrid", kMamba}, {"granitemoehybrid", kMamba},
    {"nemotronh", kMamba},  {"plamo2", kMamba},      {"qwen3next", kDelta},     {"qwen35", kDelta},
    {"olmohybrid", kDelta}, {"kimilinear", kDelta},  {"minimax01", kLinear},    {"recurrentgemma", kLru},
    {"rwkv", kWkv},         {"arwkv", kWkv},         {"lfm2", kConv},           {"xlstm", kLstm},
};
// Of config.json: words of lists that name a kind for each layer, and fields.
constexpr const char* kLayerLists[] = {"layer_types", "layers_block_type", "block_types"};
constexpr Sign kLayerWords[] = {
    {"linear_attention", kLinear}, {"mamba", kMamba}, {"mamba2", kMamba}, {"recurrent", kLru}, {"conv", kConv}};
constexpr Sign kFields[] = {{"linear_num_value_heads", kLinear}, {"mamba_d_state", kMamba}, {"conv_L_cache", kConv}};
// Of a GGUF: keys behind the architecture's name.
constexpr Sign kKeys[] = {{"ssm.state_size", "state spaces"},
                          {"ssm.conv_kernel", "state spaces"},
                          {"kda.head_dim", kDelta},
                          {"wkv.head_size", kWkv},
                          {"shortconv.l_cache", kConv}};

std::string_view family_of(std::string_view architecture) {
  std::string name;
  for (const char c : architecture) {
    if (c != '_' && c != '-' && c != '.') name += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  for (const Sign& family : kFamilies) {
    if (name.starts_with(family.text)) return family.what;
  }
  return {};
}

}  // namespace

std::string_view recurrent_layers(std::string_view architecture, const nlohmann::json& config) {
  if (const std::string_view what = family_of(architecture); !what.empty()) return what;
  for (const char* key : kLayerLists) {
    const auto list = config.find(key);
    if (list == config.end() || !list->is_array()) continue;
    for (const nlohmann::json& layer : *list) {
      for (const Sign& word : kLayerWords) {
        if (layer.is_string() && layer.get_ref<const std::string&>() == word.text) return word.what;
      }
    }
  }
  for (const Sign& field : kFields) {
    const auto value = config.find(field.text);
    if (value != config.end() && !value->is_null()) return field.what;
  }
  return {};
}

std::string_view recurrent_layers(std::string_view architecture, const GgufFile& gguf) {
  if (const std::string_view what = family_of(architecture); !what.empty()) return what;
  for (const Sign& key : kKeys) {
    if (gguf.find(fmt::format("{}.{}", architecture, key.text))) return key.what;
  }
  return {};
}

}  // namespace kvilt
