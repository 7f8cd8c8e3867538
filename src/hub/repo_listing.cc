#include "hub/repo_listing.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "hub/content_hash.h"
#include "model/gguf_parts.h"
#include "model/json_text.h"
#include "model/tensor_table.h"

namespace kvilt {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxPathBytes = 1024, kMaxNameBytes = 255;  // Linux: NAME_MAX

// Beside the weights: what open_model() reads, and what other programs ask of a folder of this form.
constexpr std::string_view kSmallFiles[] = {"config.json",         "generation_config.json",
                                            "tokenizer.json",      "tokenizer_config.json",
                                            "chat_template.jinja", "additional_chat_templates/tool_use.jinja",
                                            "chat_template.json",  "special_tokens_map.json",
                                            "added_tokens.json",   "vocab.json",
                                            "merges.txt",          "tokenizer.model"};
constexpr std::string_view kIndex = "model.safetensors.index.json", kWhole = "model.safetensors";

std::string text_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

std::optional<int64_t> size_of(const Json& object) {
  const auto it = object.find("size");
  if (it == object.end() || !it->is_number_unsigned()) return std::nullopt;
  const auto size = it->get<uint64_t>();
  return size <= uint64_t{kMaxPulledBytes} ? std::optional(static_cast<int64_t>(size)) : std::nullopt;
}

Result<RepoFile> read_sibling(const Json& sibling, const std::string& where) {
  if (!sibling.is_object()) return error(Code::kCorrupt, "{}: a file is no JSON object", where);
  RepoFile out;
  out.path = text_of(sibling, "rfilename");
  if (!is_safe_path(out.path))
    return error(Code::kCorrupt, "{}: lists a file named '{}', which is refused", where, printable(out.path));
  const auto lfs = sibling.find("lfs");
  const bool large = lfs != sibling.end() && lfs->is_object();
  const std::string name = large ? text_of(*lfs, "sha256") : text_of(sibling, "blobId");
  if (name.empty()) return out;  // no matter, unless this file is wanted
  const auto size = size_of(large ? *lfs : sibling);
  if (!size || !ContentHash::is_name(name) || name.size() != (large ? 64 : 40))
    return error(Code::kCorrupt, "{}: size or hash of '{}' make no sense", where, printable(out.path));
  out.size = *size;
  out.blob = name;
  return out;
}

bool is_weight_of(std::string_view path, bool indexed) {
  if (path.find('/') != std::string_view::npos || !path.ends_with(".safetensors")) return false;
  return indexed ? path.starts_with("model") && path != kWhole : path == kWhole;
}

bool has_file(const RepoListing& listing, std::string_view path) {
  return std::ranges::any_of(listing.files, [&](const RepoFile& file) { return file.path == path; });
}

Result<std::vector<RepoFile>> folder_files(const HubName& name, const RepoListing& listing) {
  const bool indexed = !has_file(listing, kWhole) && has_file(listing, kIndex);
  std::vector<RepoFile> small, weights;
  for (const RepoFile& file : listing.files) {
    if (is_weight_of(file.path, indexed)) weights.push_back(file);
    if (std::ranges::find(kSmallFiles, file.path) != std::end(kSmallFiles) || (indexed && file.path == kIndex))
      small.push_back(file);
  }
  if (weights.empty()) {
    return error(
        Code::kUnsupported,
        "'{}' has weights neither as GGUF nor as {}; on the hub look for the same model with -GGUF in its name",
        name.repo(), kWhole);
  }
  small.insert(small.end(), weights.begin(), weights.end());  // what is wrong with the small ones shows at once
  return small;
}

}  // namespace

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > kMaxPathBytes) return false;
  const auto odd = [](unsigned char c) { return c < 0x20 || c == 0x7f || c == '\\'; };
  if (std::ranges::any_of(path, odd)) return false;
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    if (part.empty() || part == "." || part == ".." || part.size() > kMaxNameBytes) return false;
    at = end + 1;
  }
  return true;
}

Result<RepoListing> parse_listing(std::string_view text, const std::string& where) {
  const Result<Json> json = parse_json(text, where);
  if (!json.ok()) return error(Code::kCorrupt, "{}; is this a hub, or did a proxy answer?", json.error().message);
  RepoListing out;
  if (json->is_object()) out.commit = text_of(*json, "sha");
  if (out.commit.size() != 40 || !ContentHash::is_name(out.commit))
    return error(Code::kCorrupt, "{}: the answer names no commit ('sha')", where);
  const auto siblings = json->find("siblings");
  if (siblings == json->end() || !siblings->is_array())
    return error(Code::kCorrupt, "{}: the answer lists no files ('siblings')", where);
  if (siblings->size() > kMaxListedFiles)
    return error(Code::kCorrupt, "{}: {} files; more than {} are refused", where, siblings->size(), kMaxListedFiles);
  std::set<std::string> seen;
  int64_t bytes = 0;
  for (const Json& sibling : *siblings) {
    KVILT_ASSIGN(RepoFile file, read_sibling(sibling, where));
    if (!seen.insert(file.path).second)
      return error(Code::kCorrupt, "{}: lists '{}' twice", where, printable(file.path));
    bytes += file.size;
    if (bytes > kMaxPulledBytes) return error(Code::kCorrupt, "{}: the sizes of its files make no sense", where);
    out.files.push_back(std::move(file));
  }
  return out;
}

Result<ChosenFiles> choose_files(const HubName& name, const RepoListing& listing) {
  std::vector<std::string> paths;
  for (const RepoFile& file : listing.files) paths.push_back(file.path);
  ChosenFiles out;
  KVILT_ASSIGN(out.model, choose_model(name, paths));
  if (out.model.empty()) {
    KVILT_ASSIGN(out.files, folder_files(name, listing));
  } else {
    std::ranges::copy_if(listing.files, std::back_inserter(out.files),
                         [&](const RepoFile& file) { return first_part(file.path) == out.model; });
    std::ranges::sort(out.files, {}, &RepoFile::path);
    if (std::cmp_not_equal(out.files.size(), part_count(out.model)))
      return error(Code::kNotFound, "'{}': the hub has {} of the {} parts of {}", name.text(), out.files.size(),
                   part_count(out.model), printable(out.model));
  }
  for (const RepoFile& file : out.files) {
    if (file.blob.empty())
      return error(Code::kUnsupported, "the hub does not say size and hash of {}, so that it could not be checked",
                   printable(file.path));
  }
  return out;
}

}  // namespace kvilt
