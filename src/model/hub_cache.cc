#include "model/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "model/hub_names.h"
#include "model/tensor_table.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFiles = 10000;

std::vector<fs::path> snapshots_of(const fs::path& model) {
  std::vector<fs::path> all;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(model / "snapshots", ignored)) {
    if (entry.is_directory(ignored)) all.push_back(entry.path());
  }
  std::ranges::sort(all);
  return all;
}

// The snapshot of `main`, or the only one.
Result<fs::path> snapshot_of(const fs::path& model, const HubName& name) {
  std::error_code ignored;
  if (fs::exists(model / "refs" / "main", ignored)) {
    KVILT_ASSIGN(std::string commit, read_file((model / "refs" / "main").string(), 256));
    while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back()))) commit.pop_back();
    const bool hex = !commit.empty() && std::ranges::all_of(commit, [](unsigned char c) { return std::isxdigit(c); });
    if (!hex) return error(Code::kCorrupt, "{}: not a commit", (model / "refs" / "main").string());
    if (fs::is_directory(model / "snapshots" / commit, ignored)) return model / "snapshots" / commit;
  }
  if (const std::vector<fs::path> all = snapshots_of(model); all.size() == 1) return all[0];
  return error(Code::kNotFound, "{}: no snapshot of refs/main; 'kvilt pull {}' downloads it", model.string(),
               name.text());
}

// What is there, relative to the snapshot; links whose file is missing are not.
std::vector<std::string> files_of(const fs::path& snapshot) {
  std::vector<std::string> out;
  std::error_code ignored;
  size_t seen = 0;
  for (auto it = fs::recursive_directory_iterator(snapshot, ignored);
       it != fs::recursive_directory_iterator() && ++seen < kMaxFiles; it.increment(ignored)) {
    if (it.depth() >= kHubDepth) it.disable_recursion_pending();
    if (it->is_regular_file(ignored)) out.push_back(it->path().lexically_relative(snapshot).string());
  }
  return out;
}

// In snapshots of other commits, which earlier downloads left: their paths. Two links to one file are one.
std::vector<fs::path> found_elsewhere(const fs::path& model, const fs::path& main, const HubName& name) {
  std::map<fs::path, fs::path> by_contents;
  std::error_code ignored;
  for (const fs::path& snapshot : snapshots_of(model)) {
    if (snapshot == main) continue;
    const Result<std::string> file = choose_model(name, files_of(snapshot));
    if (!file.ok()) continue;
    const fs::path path = file->empty() ? snapshot : snapshot / *file;
    by_contents.emplace(fs::weakly_canonical(path, ignored), path);
  }
  std::vector<fs::path> out;
  for (const auto& [contents, path] : by_contents) out.push_back(path);
  return out;
}

}  // namespace

Result<std::string> find_model_in(const std::string& hub, const std::string& text) {
  std::error_code ignored;
  const auto name = hub_name(text);
  if (!name || fs::exists(text, ignored)) return text;
  const fs::path model = fs::path(hub) / name->folder();
  if (!fs::is_directory(model, ignored)) {
    return error(Code::kNotFound,
                 "{}: no such file or folder, and no model of that name in {}; download it with 'kvilt pull {}', or "
                 "give a path",
                 text, hub, text);
  }
  KVILT_ASSIGN(const fs::path snapshot, snapshot_of(model, *name));
  const Result<std::string> file = choose_model(*name, files_of(snapshot));
  if (file.ok()) return file->empty() ? snapshot.string() : (snapshot / *file).string();
  if (file.error().code != Code::kNotFound)
    return error(file.error().code, "{}: {}", snapshot.string(), file.error().message);
  const std::vector<fs::path> older = found_elsewhere(model, snapshot, *name);
  if (older.size() == 1) return older[0].string();
  std::string places;
  for (const fs::path& path : older) places += fmt::format("{}{}", places.empty() ? "" : ", ", path.string());
  return error(Code::kNotFound, "{}: {}. 'kvilt pull {}' downloads what the hub has{}", snapshot.string(),
               file.error().message, text,
               places.empty() ? "" : "; other snapshots have several, which a path names: " + printable(places, 2000));
}

Result<std::string> find_model(const std::string& name) { return find_model_in(hub_folder(), name); }

}  // namespace kvilt
