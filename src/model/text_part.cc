#include "model/text_part.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "model/fields.h"

namespace kvilt {
namespace {

// Beginnings of names, and what they are in a text model. The second and third are of files from before Transformers
// 4.52, where the towers' names have no "model.".
constexpr std::pair<std::string_view, std::string_view> kPrefixes[] = {{"model.language_model.", "model."},
                                                                       {"language_model.model.", "model."},
                                                                       {"language_model.lm_head.", "lm_head."},
                                                                       {"lm_head.", "lm_head."}};

// Settings of the whole that are the text model's where it has none of its own. A model that is quantised is refused.
constexpr const char* kOfTheWhole[] = {"tie_word_embeddings", "quantization_config", "_name_or_path"};

// What Transformers takes where `text_config` says nothing, and so does not write there.
nlohmann::json defaults_of(std::string_view type) {
  nlohmann::json out = {{"hidden_size", 2304},      {"intermediate_size", 9216}, {"num_hidden_layers", 26},
                        {"num_attention_heads", 8}, {"num_key_value_heads", 4},  {"max_position_embeddings", 131072},
                        {"vocab_size", 262208}};
  if (type == "gemma4") out.update({{"num_hidden_layers", 30}, {"vocab_size", 262144}});
  return out;
}

const nlohmann::json* said(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::optional<std::string> name_in_text_model(std::string_view name) {
  for (const auto& [from, to] : kPrefixes) {
    if (name.starts_with(from)) return std::string(to) + std::string(name.substr(from.size()));
  }
  return std::nullopt;
}

}  // namespace

bool is_multimodal(const nlohmann::json& config) {
  const auto type = config.is_object() ? config.find("model_type") : config.end();
  return type != config.end() && (*type == "gemma3" || *type == "gemma4");
}

Result<nlohmann::json> text_config_of(const nlohmann::json& config, const std::string& where) {
  const std::string type = config.at("model_type").get<std::string>(), text_type = type + "_text";
  const nlohmann::json* part = said(config, "text_config");
  if (!part || !part->is_object()) {
    return error(Code::kCorrupt, "{}: a multimodal {}, and no object 'text_config' that says what its text model is",
                 where, type);
  }
  Fields fields(*part, where + ": text_config");
  const std::string own = fields.text_or("model_type", text_type);
  KVILT_TRY(fields.status());
  if (own != text_type) {
    return error(Code::kUnsupported, "{}: text_config: model_type '{}' in a {}; this build runs {}", where,
                 printable(own), type, text_type);
  }
  nlohmann::json out = *part;
  out["model_type"] = text_type;
  for (const char* key : kOfTheWhole) {
    const nlohmann::json* of_whole = said(config, key);
    if (of_whole && !said(out, key)) out[key] = *of_whole;
  }
  if (const nlohmann::json* tied = said(config, "tie_word_embeddings"); tied && *tied != out["tie_word_embeddings"])
    return error(Code::kUnsupported, "{}: 'tie_word_embeddings' that is not its text_config's", where);
  const nlohmann::json defaults = defaults_of(type);
  for (const auto& [key, value] : defaults.items()) {
    if (!out.contains(key)) out[key] = value;
  }
  return out;
}

Result<TensorTable> text_tensors_of(const TensorTable& all, const std::string& where) {
  TensorTable out;
  for (const auto& [name, tensor] : all.all()) {
    const auto renamed = name_in_text_model(name);
    if (!renamed) continue;
    StoredTensor own = tensor;
    own.name = *renamed;
    if (!out.add(std::move(own)))
      return error(Code::kCorrupt, "{}: tensor '{}': another one of the text model has its name", where,
                   printable(name));
  }
  if (out.all().empty()) {
    return error(Code::kCorrupt, "{}: none of the {} tensors begins with '{}' or '{}', as a multimodal model's do",
                 where, all.all().size(), kPrefixes[0].first, kPrefixes[1].first);
  }
  return out;
}

}  // namespace kvilt
