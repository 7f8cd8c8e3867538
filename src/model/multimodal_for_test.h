// model/multimodal_for_test.h: a fixture's text model as the text part of a multimodal folder: `text_config`, tensors
// with a prefix, and a tensor each of towers for images and audio. For tests only.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

namespace kvilt {

class MultimodalFolder {
 public:
  using Json = nlohmann::json;
  struct Change {
    bool older_names = false;                    // language_model.model.*, as before Transformers 4.52
    bool text_byte = false, tower_byte = false;  // one byte differs there
    std::function<void(Json& config)> config = [](Json&) {};
    std::function<std::string(const std::string& name)> rename = {};  // in place of the usual names
  };

  explicit MultimodalFolder(const std::string& fixture) : MultimodalFolder(fixture, Change()) {}
  MultimodalFolder(const std::string& fixture, const Change& change)
      : path_(std::filesystem::temp_directory_path() /
              ("kvilt_multimodal_" + std::to_string(::getpid()) + "_" + std::to_string(++made_))) {
    const std::filesystem::path from = "tests/data/fixtures/" + fixture;
    std::filesystem::create_directories(path_);
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy_file(from / name, path_ / name);
    write("config.json", whole_config(Json::parse(read(from / "config.json")), change).dump());
    write("model.safetensors", tensors(read(from / "model.safetensors"), change));
  }
  ~MultimodalFolder() { std::filesystem::remove_all(path_); }
  MultimodalFolder(const MultimodalFolder&) = delete;
  std::string path() const { return path_; }

 private:
  static std::string read(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
  }

  static Json whole_config(Json text, const Change& change) {
    const std::string text_type = text["model_type"], type = text_type.substr(0, text_type.find('_'));
    Json whole = {{"model_type", type},
                  {"architectures", {"Gemma4ForConditionalGeneration"}},
                  {"eos_token_id", text["eos_token_id"]},
                  {"tie_word_embeddings", text["tie_word_embeddings"]},
                  {"vision_config", {{"model_type", type + "_vision"}, {"hidden_size", 4}, {"num_hidden_layers", 1}}},
                  {"audio_config", {{"model_type", type + "_audio"}, {"hidden_size", 4}}}};
    whole["text_config"] = std::move(text);
    change.config(whole);
    return whole;
  }

  static std::string renamed(const std::string& name, const Change& change) {
    if (change.rename) return change.rename(name);
    if (!name.starts_with("model.")) return change.older_names ? "language_model." + name : name;
    return (change.older_names ? "language_model.model." : "model.language_model.") + name.substr(6);
  }

  // The header's names change; contents stay where they are, and the towers' come behind them.
  static std::string tensors(const std::string& file, const Change& change) {
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
    const Json header = Json::parse(file.substr(sizeof(header_bytes), header_bytes));
    std::string data = file.substr(sizeof(header_bytes) + header_bytes);
    if (change.text_byte) {
      const uint64_t at = header.at("model.layers.0.self_attn.q_proj.weight").at("data_offsets")[0].get<uint64_t>();
      data[at] = static_cast<char>(data[at] ^ 0x40);
    }
    Json out = Json::object();
    for (const auto& [name, tensor] : header.items()) {
      if (name != "__metadata__") out[renamed(name, change)] = tensor;
    }
    const std::string prefix = change.older_names ? "" : "model.";
    for (const char* tower : {"vision_tower.patch_embedder.input_proj.weight", "audio_tower.layers.0.weight"}) {
      out[prefix + tower] = {{"dtype", "F32"}, {"shape", {2, 2}}, {"data_offsets", {data.size(), data.size() + 16}}};
      data.append(16, change.tower_byte ? '\1' : '\0');
    }
    const std::string text = out.dump();
    const uint64_t size = text.size();
    return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text + data;
  }

  static inline int made_ = 0;
  const std::filesystem::path path_;
};

}  // namespace kvilt
