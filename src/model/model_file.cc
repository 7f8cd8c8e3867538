#include "model/model_file.h"

#include <algorithm>
#include <filesystem>
#include <future>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "model/fields.h"
#include "model/fingerprint.h"
#include "model/gguf_parts.h"
#include "model/gguf_tokenizer.h"
#include "model/hub_cache.h"
#include "model/hub_names.h"
#include "model/json_text.h"
#include "model/read_config.h"
#include "model/read_sampling.h"
#include "model/safetensors.h"
#include "model/text_part.h"
#include "text/tokenizer_hf.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

constexpr size_t kMaxConfigBytes = 4 << 20;      // config.json, generation_config.json, tokenizer_config.json
constexpr size_t kMaxIndexBytes = 16 << 20;      // model.safetensors.index.json
constexpr size_t kMaxTokenizerBytes = 64 << 20;  // tokenizer.json
constexpr size_t kMaxTemplateBytes = 4 << 20;
constexpr const char* kTemplate = "chat_template.jinja";
constexpr const char* kToolsTemplate = "additional_chat_templates/tool_use.jinja";
constexpr size_t kMaxShards = 4096;
constexpr size_t kMaxEndIds = 256;

using Files = std::vector<MappedFile>;

std::string mebibytes(size_t bytes) { return fmt::format("{} MiB", (bytes + (1 << 19)) >> 20); }

// The type that most bytes have.
std::string main_type(const TensorTable& tensors) {
  std::map<std::string, size_t> bytes;
  for (const auto& [name, tensor] : tensors.all()) bytes[tensor.type_name] += tensor.bytes;
  const auto most = std::ranges::max_element(bytes, [](auto& a, auto& b) { return a.second < b.second; });
  return most == bytes.end() ? "" : most->first;
}

// The names of general.file_type (llama.cpp's LLAMA_FTYPE_MOSTLY_...); without one, the type that most bytes have.
std::string file_type_name(const GgufFile& gguf) {
  static const std::map<int64_t, const char*> kNames = {
      {0, "F32"},     {1, "F16"},     {2, "Q4_0"},      {3, "Q4_1"},    {7, "Q8_0"},    {8, "Q5_0"},
      {9, "Q5_1"},    {10, "Q2_K"},   {11, "Q3_K_S"},   {12, "Q3_K_M"}, {13, "Q3_K_L"}, {14, "Q4_K_S"},
      {15, "Q4_K_M"}, {16, "Q5_K_S"}, {17, "Q5_K_M"},   {18, "Q6_K"},   {21, "Q2_K_S"}, {25, "IQ4_NL"},
      {30, "IQ4_XS"}, {32, "BF16"},   {38, "MXFP4_MOE"}};
  const GgufValue* value = gguf.find("general.file_type");
  const auto id = value ? value->as_int() : std::nullopt;
  const auto it = id ? kNames.find(*id) : kNames.end();
  return it == kNames.end() ? main_type(gguf.tensors) : it->second;
}

// Makes an error of the tokenizer fit for a message: it knows neither the file nor how long a text may be.
Error in_file(const std::string& file, const Error& inner) {
  constexpr size_t kMaxMessage = 400;
  return error(inner.code, "{}: {}", file, printable(inner.message, kMaxMessage));
}

std::vector<SourceFile> sources_of(const Files& files) {
  std::vector<SourceFile> out;
  std::error_code ignored;
  for (const MappedFile& file : files) {
    out.push_back({std::filesystem::absolute(file.path(), ignored).string(), file.bytes(), file.modified_ns()});
  }
  return out;
}

void add_end_ids(ModelConfig& config, std::span<const int32_t> ids) {
  config.eos_ids.insert(config.eos_ids.end(), ids.begin(), ids.end());
  std::ranges::sort(config.eos_ids);
  config.eos_ids.erase(std::unique(config.eos_ids.begin(), config.eos_ids.end()), config.eos_ids.end());
}

// Ids beyond the embedding would read past it.
Status check_vocabulary(const ModelFile& model, const std::string& where) {
  if (model.tokenizer && model.tokenizer->vocab_size() > model.config.V) {
    return error(Code::kCorrupt, "{}: the tokenizer has {} tokens, the embedding {} rows", where,
                 model.tokenizer->vocab_size(), model.config.V);
  }
  for (const int32_t id : model.config.eos_ids) {
    if (id < 0 || id >= model.config.V) {
      return error(Code::kCorrupt, "{}: end-of-text id {} is outside the vocabulary of {}", where, id, model.config.V);
    }
  }
  return {};
}

void take(ReadSampling read, ModelFile& model) {
  model.sampling = read.defaults;
  std::ranges::move(read.warnings, std::back_inserter(model.warnings));
}

using WeightsReady = std::function<void(const ModelFile&)>;

// What the tokenizer adds to a model.
struct GgufText {
  TokenizerSpec spec;  // without its lists, which are in the tokenizer
  std::string bos, eos;
  std::unique_ptr<Tokenizer> tokenizer;
};

Result<GgufText> build_tokenizer(const GgufFile& gguf, const std::string& path) {
  GgufText out;
  KVILT_ASSIGN(TokenizerSpec spec, read_gguf_tokenizer(gguf, path));
  const auto text_of = [&](std::optional<int32_t> id) { return id ? spec.tokens[*id] : std::string(); };
  out.bos = text_of(spec.bos);
  out.eos = text_of(spec.eos);
  out.spec.eos = spec.eos;
  out.spec.add_bos = spec.add_bos;
  auto tokenizer = Tokenizer::create(std::move(spec));
  if (!tokenizer.ok()) return in_file(path, tokenizer.error());
  out.tokenizer = std::move(tokenizer).value();
  return out;
}

// The name of a model whose files give it none, for people and for clients: what it was asked for by in the hub's cache,
// else its file's or folder's.
std::string name_by_place(const std::string& asked, const std::string& path) {
  if (asked != path) return asked;  // ORG/NAME[:TAG]
  std::error_code ignored;
  std::filesystem::path place = std::filesystem::absolute(path, ignored).lexically_normal();
  if (place.filename().empty()) place = place.parent_path();  // "folder/", "."
  if (!std::filesystem::is_directory(place, ignored)) return place.stem().string();
  const std::filesystem::path above = place.parent_path();
  if (above.filename() == "snapshots") {  // of the hub's cache, where a commit names the folder
    if (const auto repo = repo_of_folder(above.parent_path().filename().string())) return *repo;
  }
  return place.has_filename() ? place.filename().string() : "model";
}

// name: of a model whose file gives it none.
Result<std::unique_ptr<ModelFile>> open_gguf(const std::string& path, const std::string& name,
                                             const WeightsReady& weights_ready) {
  KVILT_ASSIGN(const GgufParts parts, open_gguf_parts(path));
  const GgufFile& gguf = parts.gguf;
  KVILT_ASSIGN(ReadConfig read, read_gguf_config(gguf, path));
  auto model = std::make_unique<ModelFile>();
  model->config = std::move(read.config);
  if (model->config.name.empty()) model->config.name = name;
  KVILT_ASSIGN(model->weights, bind_weights({model->config, gguf.tensors, NameStyle::kGguf, read.biases, path}));

  // On a thread of its own: it takes 0.1 s for 152,000 tokens, and the weights do not need it.
  auto text_later = std::async(std::launch::async, [&] { return build_tokenizer(gguf, path); });
  model->fingerprint = fingerprint(model->config, gguf.tensors);
  model->sources = sources_of(*parts.files);
  model->keep_alive = parts.files;
  if (weights_ready) weights_ready(*model);
  KVILT_ASSIGN(GgufText text, text_later.get());
  model->config.bos_token = std::move(text.bos);
  model->config.eos_token = std::move(text.eos);
  model->config.add_bos = text.spec.add_bos;
  if (text.spec.eos) add_end_ids(model->config, {{*text.spec.eos}});
  model->tokenizer = std::move(text.tokenizer);
  add_end_ids(model->config, model->tokenizer->end_ids());
  KVILT_TRY(check_vocabulary(*model, path));

  Fields templates(gguf, "tokenizer.", path);
  model->chat_template = templates.text_or("chat_template", "");
  model->tools_template = templates.text_or("chat_template.tool_use", "");
  KVILT_TRY(templates.status());
  take(read_gguf_sampling(gguf, path), *model);
  model->description =
      fmt::format("GGUF {}, {} tensors, {}", file_type_name(gguf), gguf.tensors.all().size(), mebibytes(parts.bytes()));
  return model;
}

class FolderReader {
 public:
  // name: of a model whose files give it none.
  FolderReader(std::string folder, std::string name)
      : folder_(std::move(folder)), name_(std::move(name)), files_(std::make_shared<Files>()) {}

  Result<std::unique_ptr<ModelFile>> open() {
    KVILT_ASSIGN(const nlohmann::json config, json("config.json", kMaxConfigBytes));
    KVILT_ASSIGN(ReadConfig read, read_hf_config(config, path("config.json")));
    KVILT_TRY(map_weights());
    if (is_multimodal(config)) KVILT_TRY(keep_text_part());
    model_->config = std::move(read.config);
    if (model_->config.name.empty()) model_->config.name = name_;
    const BindRequest bind{model_->config, tensors_, NameStyle::kHuggingFace, read.biases,
                           weights_name_ + (left_out_.empty() ? "" : ": text part")};
    KVILT_ASSIGN(model_->weights, bind_weights(bind));
    KVILT_TRY(end_ids(config, "config.json"));
    if (is_multimodal(config)) KVILT_TRY(end_ids(config.at("text_config"), "config.json"));
    KVILT_TRY(read_generation_config());
    KVILT_TRY(read_tokenizer());
    KVILT_TRY(check_vocabulary(*model_, folder_));
    model_->description = fmt::format("safetensors {}, {} tensors, {}{}", main_type(tensors_), tensors_.all().size(),
                                      mebibytes(tensors_.bytes()), left_out_);
    model_->fingerprint = fingerprint(model_->config, tensors_);
    model_->sources = sources_of(*files_);
    model_->keep_alive = std::move(files_);
    return std::move(model_);
  }

 private:
  std::string path(const std::string& name) const { return (std::filesystem::path(folder_) / name).string(); }
  bool has(const std::string& name) const {
    std::error_code ignored;
    return std::filesystem::exists(path(name), ignored);
  }
  Result<nlohmann::json> json(const std::string& name, size_t max_bytes) const {
    KVILT_ASSIGN(const std::string text, read_file(path(name), max_bytes));
    return parse_json(text, path(name));
  }

  Status map_weights() {
    if (has("model.safetensors")) {
      weights_name_ = path("model.safetensors");
      return map_file("model.safetensors");
    }
    weights_name_ = path("model.safetensors.index.json");
    if (!has("model.safetensors.index.json")) {
      return error(Code::kNotFound, "{}: neither model.safetensors nor model.safetensors.index.json", folder_);
    }
    KVILT_ASSIGN(const nlohmann::json index, json("model.safetensors.index.json", kMaxIndexBytes));
    const auto map = index.is_object() ? index.find("weight_map") : index.end();
    if (map == index.end() || !map->is_object()) {
      return error(Code::kCorrupt, "{}: no object 'weight_map'", weights_name_);
    }
    std::set<std::string> shards;
    for (const auto& [tensor, shard] : map->items()) {
      // A shard is a file of this folder and nothing else.
      const bool plain = shard.is_string() && shard.get_ref<const std::string&>().ends_with(".safetensors") &&
                         shard.get_ref<const std::string&>().find('/') == std::string::npos;
      if (!plain) {
        return error(Code::kCorrupt, "{}: tensor '{}': its shard is no file name *.safetensors", weights_name_,
                     printable(tensor));
      }
      shards.insert(shard.get<std::string>());
      if (shards.size() > kMaxShards)
        return error(Code::kCorrupt, "{}: more than {} shards", weights_name_, kMaxShards);
    }
    for (const std::string& shard : shards) KVILT_TRY(map_file(shard));
    return {};
  }

  Status keep_text_part() {
    const size_t all = tensors_.all().size();
    KVILT_ASSIGN(tensors_, text_tensors_of(tensors_, weights_name_));
    left_out_ = fmt::format("; text only: {} tensors for images or audio are left out", all - tensors_.all().size());
    return {};
  }

  Status map_file(const std::string& name) {
    KVILT_ASSIGN(MappedFile mapped, MappedFile::open(path(name)));
    files_->push_back(std::move(mapped));
    return parse_safetensors(files_->back().bytes(), path(name), tensors_);
  }

  // eos_token_id: an id or a list of them.
  Status end_ids(const nlohmann::json& object, const char* file) {
    const auto it = object.is_object() ? object.find("eos_token_id") : object.end();
    if (it == object.end() || it->is_null()) return {};
    const nlohmann::json list = it->is_array() ? *it : nlohmann::json::array({*it});
    std::vector<int32_t> ids;
    for (const auto& id : list) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX || list.size() > kMaxEndIds) {
        return error(Code::kCorrupt, "{}: 'eos_token_id' must be a token id or a list of up to {} of them", path(file),
                     kMaxEndIds);
      }
      ids.push_back(id.get<int32_t>());
    }
    add_end_ids(model_->config, ids);
    return {};
  }

  Status read_generation_config() {
    if (!has("generation_config.json")) return {};
    KVILT_ASSIGN(const nlohmann::json config, json("generation_config.json", kMaxConfigBytes));
    take(read_hf_sampling(config, path("generation_config.json")), *model_);
    return end_ids(config, "generation_config.json");
  }

  Status read_tokenizer() {
    std::string config_text;
    nlohmann::json config = nlohmann::json::object();
    if (has("tokenizer_config.json")) {
      KVILT_ASSIGN(config_text, read_file(path("tokenizer_config.json"), kMaxConfigBytes));
      KVILT_ASSIGN(config, parse_json(config_text, path("tokenizer_config.json")));
      if (!config.is_object()) return error(Code::kCorrupt, "{}: not a JSON object", path("tokenizer_config.json"));
    }
    KVILT_TRY(read_template(config));
    if (!has("tokenizer.json")) return {};  // token ids in and out still work
    KVILT_ASSIGN(const std::string text, read_file(path("tokenizer.json"), kMaxTokenizerBytes));
    KVILT_TRY(build_tokenizer(text, config_text));
    add_end_ids(model_->config, model_->tokenizer->end_ids());
    model_->config.bos_token = token_text(config, "bos_token", model_->tokenizer->bos());
    model_->config.eos_token = token_text(config, "eos_token", model_->tokenizer->eos());
    const auto ids = model_->tokenizer->encode("", {.add_special = true});
    const auto bos = model_->tokenizer->bos();
    model_->config.add_bos = ids.ok() && bos && !ids->empty() && ids->front() == *bos;
    return {};
  }

  Status build_tokenizer(const std::string& text, const std::string& config_text) {
    const std::string file = path("tokenizer.json");
    auto spec = spec_from_hf(text, config_text);
    if (!spec.ok()) return in_file(file, spec.error());
    const std::vector<std::string> left_out = leave_out_added(*spec, static_cast<size_t>(model_->config.V));
    if (!left_out.empty()) {
      model_->warnings.push_back(fmt::format(
          "{}: {} added tokens, the first is '{}', have ids beyond the embedding's {} rows; they are left out", file,
          left_out.size(), printable(left_out[0]), model_->config.V));
    }
    auto tokenizer = Tokenizer::create(std::move(spec).value());
    if (!tokenizer.ok()) return in_file(file, tokenizer.error());
    model_->tokenizer = std::move(tokenizer).value();
    return {};
  }

  // A text, or an object {"content": text}; else the tokenizer's own.
  std::string token_text(const nlohmann::json& config, const char* key, std::optional<int32_t> id) const {
    const auto it = config.find(key);
    if (it != config.end() && it->is_string()) return it->get<std::string>();
    if (it != config.end() && it->is_object()) {
      const auto content = it->find("content");
      if (content != it->end() && content->is_string()) return content->get<std::string>();
    }
    return id ? std::string(model_->tokenizer->token_bytes(*id)) : std::string();
  }

  // Files of templates take precedence over tokenizer_config.json, as in Transformers: with one of them, what that says
  // under the same name is not read, and beside chat_template.jinja nothing of it.
  Status read_template(const nlohmann::json& config) {
    if (has(kTemplate)) {
      KVILT_TRY(read_template_file(kTemplate, model_->chat_template));
    } else {
      KVILT_TRY(read_configured(config));
    }
    return has(kToolsTemplate) ? read_template_file(kToolsTemplate, model_->tools_template) : Status();
  }

  Status read_template_file(const char* name, std::string& out) {
    KVILT_ASSIGN(out, read_file(path(name), kMaxTemplateBytes));
    if (!is_utf8(out)) return error(Code::kCorrupt, "{}: not UTF-8", path(name));
    return {};
  }

  // What tokenizer_config.json has: a text, or a list of named ones.
  Status read_configured(const nlohmann::json& config) {
    const auto it = config.find("chat_template");
    if (it == config.end() || it->is_null()) return {};
    if (it->is_string()) {
      model_->chat_template = it->get<std::string>();
      return {};
    }
    if (!it->is_array()) {
      return error(Code::kCorrupt, "{}: 'chat_template' must be a text or a list of named ones",
                   path("tokenizer_config.json"));
    }
    for (const auto& named : *it) {
      if (!named.is_object() || !named.contains("name") || !named.contains("template")) continue;
      if (!named["template"].is_string()) continue;
      if (named["name"] == "default") model_->chat_template = named["template"].get<std::string>();
      if (named["name"] == "tool_use") model_->tools_template = named["template"].get<std::string>();
    }
    return {};
  }

  const std::string folder_, name_;
  std::string weights_name_;  // for messages
  std::string left_out_;      // of a multimodal model: what is not read, in words
  std::shared_ptr<Files> files_;
  TensorTable tensors_;
  std::unique_ptr<ModelFile> model_ = std::make_unique<ModelFile>();
};

}  // namespace

Result<std::unique_ptr<ModelFile>> open_model(const std::string& name, const WeightsReady& weights_ready) {
  KVILT_ASSIGN(const std::string path, find_model(name));
  std::error_code ignored;
  const std::string by_place = name_by_place(name, path);
  if (!std::filesystem::is_directory(path, ignored)) return open_gguf(path, by_place, weights_ready);
  auto model = FolderReader(path, by_place).open();
  if (model.ok() && weights_ready) weights_ready(**model);
  return model;
}

}  // namespace kvilt
