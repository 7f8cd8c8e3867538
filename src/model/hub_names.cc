#include "model/hub_names.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "model/gguf_parts.h"
#include "model/tensor_table.h"

namespace kvilt {
namespace {

constexpr std::string_view kUsual = "q4_k_m";

bool is_plain(std::string_view text) {
  return !text.empty() && text.size() <= 256 &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; });
}

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// A GGUF file of a model, of a split one the first part; mmproj files are for pictures.
bool is_model(const std::string& path) {
  const std::string file = path.substr(path.rfind('/') + 1);
  return file.ends_with(".gguf") && !lower(file).starts_with("mmproj") && first_part(path) == path &&
         std::ranges::count(path, '/') <= kHubDepth;
}

// The tag stands in the file's name, or its folder's, between marks: Q4_K is not part of Q4_K_M.
bool has_tag(const std::string& file, const std::string& tag) {
  const std::string text = lower(file), wanted = lower(tag);
  const auto is_mark = [&](size_t at) {
    return at >= text.size() || text[at] == '-' || text[at] == '.' || text[at] == '/';
  };
  for (size_t at = text.find(wanted); at != std::string::npos; at = text.find(wanted, at + 1)) {
    if ((at == 0 || is_mark(at - 1)) && is_mark(at + wanted.size())) return true;
  }
  return false;
}

std::vector<std::string> tagged(const std::vector<std::string>& files, const std::string& tag) {
  std::vector<std::string> out;
  std::ranges::copy_if(files, std::back_inserter(out), [&](const std::string& file) { return has_tag(file, tag); });
  return out;
}

std::string listed(const std::vector<std::string>& files) {
  std::string out;
  for (size_t i = 0; i < files.size(); ++i) out += (i ? ", " : "") + files[i];
  return out.empty() ? "none" : printable(out, 1000);
}

}  // namespace

std::optional<HubName> hub_name(const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == std::string::npos) return std::nullopt;
  HubName out{text.substr(0, slash), text.substr(slash + 1), ""};
  if (const size_t colon = out.name.find(':'); colon != std::string::npos) {
    out.tag = out.name.substr(colon + 1);
    out.name.erase(colon);
    if (!is_plain(out.tag)) return std::nullopt;
  }
  if (!is_plain(out.org) || !is_plain(out.name) || out.org.starts_with('.') || out.name.starts_with('.'))
    return std::nullopt;
  return out;
}

std::optional<std::string> repo_of_folder(const std::string& folder) {
  constexpr std::string_view kPrefix = "models--";
  if (!folder.starts_with(kPrefix)) return std::nullopt;
  const size_t between = folder.find("--", kPrefix.size());
  if (between == std::string::npos) return std::nullopt;
  const std::string repo = folder.substr(kPrefix.size(), between - kPrefix.size()) + "/" + folder.substr(between + 2);
  return hub_name(repo) ? std::optional(repo) : std::nullopt;
}

std::string hub_folder() {
  if (const std::string hub = setting("HF_HUB_CACHE"); !hub.empty()) return hub;
  if (const std::string home = setting("HF_HOME"); !home.empty()) return home + "/hub";
  if (const std::string cache = setting("XDG_CACHE_HOME"); !cache.empty()) return cache + "/huggingface/hub";
  return setting("HOME") + "/.cache/huggingface/hub";
}

Result<std::string> choose_model(const HubName& name, const std::vector<std::string>& files) {
  std::vector<std::string> models;
  std::ranges::copy_if(files, std::back_inserter(models), is_model);
  std::ranges::sort(models);
  std::vector<std::string> wanted = name.tag.empty() ? models : tagged(models, name.tag);
  if (name.tag.empty() && models.empty()) {
    if (std::ranges::find(files, "config.json") != files.end()) return std::string();
    return error(Code::kNotFound, "'{}' has neither a GGUF file nor a config.json", name.text());
  }
  if (name.tag.empty() && models.size() > 1) wanted = tagged(models, std::string(kUsual));
  if (wanted.size() == 1) return wanted[0];
  if (name.tag.empty()) {
    return error(Code::kInvalidArgument, "'{}' has several models; name one as {}:TAG. GGUF files there: {}",
                 name.text(), name.text(), listed(models));
  }
  if (wanted.empty())
    return error(Code::kNotFound, "'{}' is no file there; GGUF files of {}: {}", name.text(), name.repo(),
                 listed(models));
  return error(Code::kInvalidArgument, "'{}' is more than one file; a longer tag tells them apart: {}", name.text(),
               listed(wanted));
}

}  // namespace kvilt
