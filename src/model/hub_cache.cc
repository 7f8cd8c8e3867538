#include "model/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "model/gguf_parts.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFiles = 10000;
constexpr int kMaxDepth = 3;
constexpr std::string_view kUsual = "q4_k_m";

struct HubName {
  std::string org, name, tag;
};

bool is_plain(std::string_view text) {
  return !text.empty() && text.size() <= 256 &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; });
}

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

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string hub_folder() {
  if (const std::string hub = setting("HF_HUB_CACHE"); !hub.empty()) return hub;
  if (const std::string home = setting("HF_HOME"); !home.empty()) return home + "/hub";
  if (const std::string cache = setting("XDG_CACHE_HOME"); !cache.empty()) return cache + "/huggingface/hub";
  return setting("HOME") + "/.cache/huggingface/hub";
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// The snapshot of `main`, or the only one.
Result<fs::path> snapshot_of(const fs::path& model) {
  std::error_code ignored;
  if (fs::exists(model / "refs" / "main", ignored)) {
    KVILT_ASSIGN(std::string commit, read_file((model / "refs" / "main").string(), 256));
    while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back()))) commit.pop_back();
    const bool hex = !commit.empty() && std::ranges::all_of(commit, [](unsigned char c) { return std::isxdigit(c); });
    if (!hex) return error(Code::kCorrupt, "{}: not a commit", (model / "refs" / "main").string());
    if (fs::is_directory(model / "snapshots" / commit, ignored)) return model / "snapshots" / commit;
  }
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(model / "snapshots", ignored)) {
    if (entry.is_directory(ignored)) all.push_back(entry.path());
  }
  if (all.size() == 1) return all[0];
  return error(Code::kNotFound, "{}: no snapshot of refs/main; download the model again", model.string());
}

// GGUF files of models, relative to the snapshot; of a split one the first part.
std::vector<std::string> gguf_files(const fs::path& snapshot) {
  std::vector<std::string> out;
  std::error_code ignored;
  size_t seen = 0;
  for (auto it = fs::recursive_directory_iterator(snapshot, ignored);
       it != fs::recursive_directory_iterator() && ++seen < kMaxFiles; it.increment(ignored)) {
    if (it.depth() >= kMaxDepth) it.disable_recursion_pending();
    const std::string file = it->path().filename().string();
    if (!file.ends_with(".gguf") || lower(file).starts_with("mmproj") || !it->is_regular_file(ignored)) continue;
    if (first_part(file) == file) out.push_back(fs::relative(it->path(), snapshot, ignored).string());
  }
  std::ranges::sort(out);
  return out;
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

Result<std::string> chosen(const fs::path& snapshot, const HubName& name) {
  const std::vector<std::string> files = gguf_files(snapshot);
  std::vector<std::string> wanted = name.tag.empty() ? files : tagged(files, name.tag);
  std::error_code ignored;
  if (name.tag.empty() && files.empty() && fs::exists(snapshot / "config.json", ignored)) return snapshot.string();
  if (name.tag.empty() && files.size() > 1) wanted = tagged(files, std::string(kUsual));
  if (wanted.size() == 1) return (snapshot / wanted[0]).string();
  const std::string asked = name.org + "/" + name.name;
  if (name.tag.empty())
    return error(Code::kInvalidArgument, "'{}' has several models or none; name one as {}:TAG. GGUF files there: {}",
                 asked, asked, listed(files));
  return error(Code::kInvalidArgument, "'{}:{}' is {}; GGUF files of {}: {}", asked, name.tag,
               wanted.empty() ? "none of its downloaded files" : "more than one file", snapshot.string(),
               listed(wanted.empty() ? files : wanted));
}

}  // namespace

Result<std::string> find_model_in(const std::string& hub, const std::string& text) {
  std::error_code ignored;
  const auto name = hub_name(text);
  if (!name || fs::exists(text, ignored)) return text;
  const fs::path model = fs::path(hub) / fmt::format("models--{}--{}", name->org, name->name);
  if (!fs::is_directory(model, ignored)) {
    return error(Code::kNotFound,
                 "{}: no such file or folder, and no model of that name in {}; download it there with "
                 "'hf download {}/{}', or give a path",
                 text, hub, name->org, name->name);
  }
  KVILT_ASSIGN(const fs::path snapshot, snapshot_of(model));
  return chosen(snapshot, *name);
}

Result<std::string> find_model(const std::string& name) { return find_model_in(hub_folder(), name); }

}  // namespace kvilt
