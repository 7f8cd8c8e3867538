#include "hub/pull.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "hub/download.h"
#include "hub/hub_store.h"
#include "model/gguf_parts.h"
#include "model/tensor_table.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTokenBytes = 4096;

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_printable(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) { return c > 0x20 && c < 0x7f; });
}

// HF_TOKEN, or the file that `hf auth login` writes; empty: none.
Result<std::string> find_token() {
  std::string token = from_environment("HF_TOKEN"), where = "HF_TOKEN";
  if (token.empty()) {
    where = from_environment("HF_TOKEN_PATH");
    if (where.empty()) {
      const std::string home = from_environment("HF_HOME"), cache = from_environment("XDG_CACHE_HOME");
      where = !home.empty()    ? home + "/token"
              : !cache.empty() ? cache + "/huggingface/token"
                               : from_environment("HOME") + "/.cache/huggingface/token";
    }
    std::error_code ignored;
    if (!fs::exists(where, ignored)) return std::string();
    if (fs::file_size(where, ignored) == 0) return std::string();
    KVILT_ASSIGN(token, read_file(where, kMaxTokenBytes));
  }
  while (!token.empty() && std::isspace(static_cast<unsigned char>(token.back()))) token.pop_back();
  if (token.size() > kMaxTokenBytes || !is_printable(token))
    return error(Code::kInvalidArgument, "{}: holds no token: one is a line of letters, digits and '_'", where);
  return token;
}

Result<std::string> checked_endpoint(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  const size_t begin = url.starts_with("https://") ? 8 : url.starts_with("http://") ? 7 : std::string::npos;
  if (begin == std::string::npos || begin >= url.size() || !is_printable(url) ||
      url.find_first_of("?#@\\") != std::string::npos)
    return error(Code::kInvalidArgument, "endpoint '{}': write it as https://HOST or http://HOST:PORT", printable(url));
  return url;
}

std::string file_url(const PullPlan& plan, const HubSource& source, const RepoFile& file) {
  return fmt::format("{}/{}/resolve/{}/{}", source.endpoint, plan.name.repo(), plan.listing.commit,
                     url_escaped(file.path, true));
}

Status check_room(const PullPlan& plan, const HubStore& store, const std::string& folder) {
  const auto free = store.free_bytes();
  if (!free || *free >= plan.absent_bytes) return {};
  return error(Code::kExhausted, "{} has {} MB left, {} MB are needed; HF_HUB_CACHE names another folder", folder,
               *free / 1'000'000, plan.absent_bytes / 1'000'000);
}

// What is linked: the chosen files, and the GGUF models of this commit that earlier pulls left whole in the cache. Without
// the latter a commit that changes a line of text would hide them behind the new snapshot.
std::vector<RepoFile> files_to_link(const PullPlan& plan, const HubStore& store) {
  std::map<std::string, std::vector<RepoFile>> models;  // by first part: the parts that are there
  for (const RepoFile& file : plan.listing.files) {
    if (file.path.ends_with(".gguf") && !file.blob.empty() && store.has(file))
      models[first_part(file.path)].push_back(file);
  }
  std::vector<RepoFile> out = plan.chosen.files;
  for (const auto& [first, parts] : models) {
    if (first != plan.chosen.model && std::cmp_equal(parts.size(), part_count(first)))
      out.insert(out.end(), parts.begin(), parts.end());
  }
  return out;
}

}  // namespace

Result<HubSource> hub_source(const std::string& endpoint) {
  std::string offline = from_environment("HF_HUB_OFFLINE");
  std::ranges::transform(offline, offline.begin(), [](unsigned char c) { return std::toupper(c); });
  if (offline == "1" || offline == "TRUE" || offline == "YES" || offline == "ON")
    return error(Code::kUnavailable, "HF_HUB_OFFLINE is set: nothing is downloaded");
  HubSource out;
  const std::string named = endpoint.empty() ? from_environment("HF_ENDPOINT") : endpoint;
  if (!named.empty()) {
    KVILT_ASSIGN(out.endpoint, checked_endpoint(named));
  }
  KVILT_ASSIGN(out.token, find_token());
  out.folder = hub_folder();
  return out;
}

Result<PullPlan> plan_pull(const HubName& name, const HubSource& source, PullWatcher& watcher) {
  if (!is_safe_path(source.revision))
    return error(Code::kInvalidArgument, "'{}' is no revision: name a branch, a tag or a commit",
                 printable(source.revision));
  const std::string what = source.revision == "main" ? name.repo() : name.repo() + " at " + source.revision;
  const std::string url = fmt::format("{}/api/models/{}/revision/{}?blobs=true", source.endpoint, name.repo(),
                                      url_escaped(source.revision, false));
  Downloader downloader(source, watcher);
  KVILT_ASSIGN(const std::string json, downloader.small(url, kMaxListingBytes, what));
  PullPlan out{name, {}, {}, {}};
  KVILT_ASSIGN(out.listing, parse_listing(json, what));
  KVILT_ASSIGN(out.chosen, choose_files(name, out.listing));
  const HubStore store(source.folder, name);
  for (const RepoFile& file : out.chosen.files) {
    out.bytes += file.size;
    if (store.has(file)) continue;
    out.absent.push_back(file);
    out.absent_bytes += file.size - store.begun_bytes(file);
  }
  return out;
}

Result<std::string> pull(const PullPlan& plan, const HubSource& source, PullWatcher& watcher) {
  const HubStore store(source.folder, plan.name);
  KVILT_TRY(check_room(plan, store, source.folder));
  Downloader downloader(source, watcher);
  for (const RepoFile& file : plan.absent) {
    KVILT_ASSIGN(const std::optional<OpenFile> lock, downloader.lock(file, store));
    if (lock) KVILT_TRY(downloader.into_blob(file_url(plan, source, file), file, store));
    watcher.at(file, file.size);
  }
  KVILT_TRY(store.publish(plan.listing, files_to_link(plan, store), source.revision));
  const fs::path snapshot = store.snapshot(plan.listing.commit);
  return plan.chosen.model.empty() ? snapshot.string() : (snapshot / plan.chosen.model).string();
}

}  // namespace kvilt
