#include "server/knowledge_journal.h"

#include <fcntl.h>
#include <sodium.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hex.h"

namespace kvilt::server {
namespace {

namespace fs = std::filesystem;
constexpr const char* kEnding = ".knowledge";
constexpr std::string_view kAside = ".new";  // behind the name of a file that is written anew
constexpr const char* kFormat = "kvilt knowledge base";
constexpr int kVersion = 1;
constexpr int kOwnerOnly = 0600;

// Names are the clients' words: no path is made of them.
std::string file_name(const KnowledgeJournal::Owner& owner) { return name_of(owner.tenant, owner.name) + kEnding; }

Status sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  const Error why = system_error(folder);
  if (fd >= 0) ::close(fd);
  if (!synced) return why;
  return {};
}

Result<std::string> read_all(int file, const std::string& path) {
  struct stat info;
  if (::fstat(file, &info) != 0) return system_error(path);
  std::string out(static_cast<size_t>(info.st_size), '\0');
  for (size_t done = 0; done < out.size();) {
    const ssize_t n = ::pread(file, out.data() + done, out.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n == 0 ? error(Code::kIo, "{}: it became shorter while it was read", path) : system_error(path);
    done += static_cast<size_t>(n);
  }
  return out;
}

std::string head_line(const KnowledgeJournal::Owner& owner) {
  return dump({{"format", kFormat},
               {"version", kVersion},
               {"tenant", owner.tenant},
               {"name", owner.name},
               {"created", owner.created}}) +
         "\n";
}

// What a crash leaves while a base is made: nothing, or the beginning of its first line. Anything else is damage.
bool is_unborn(std::string_view text) {
  constexpr size_t kLongest = 4096;  // of a first line: names of tenants and bases are short
  const std::string any = head_line({});
  const std::string_view fixed = std::string_view(any).substr(0, any.find("tenant"));
  return text.size() < kLongest && text.substr(0, fixed.size()) == fixed.substr(0, text.size());
}

Status read_head(const Json& head, KnowledgeJournal::Owner& owner) {
  const bool known = head.is_object() && head.value("format", Json()) == kFormat;
  if (!known) return error(Code::kCorrupt, "this is no knowledge base of kvilt");
  if (head.value("version", Json()) != kVersion)
    return error(Code::kUnsupported, "version {}; this build reads {}", head.value("version", Json()).dump(), kVersion);
  const Json tenant = head.value("tenant", Json()), name = head.value("name", Json());
  const Json created = head.value("created", Json());
  if (!tenant.is_string() || !name.is_string() || !created.is_number_integer())
    return error(Code::kCorrupt, "the first line lacks tenant, name or created");
  owner = {tenant.get<std::string>(), name.get<std::string>(), created.get<int64_t>()};
  return {};
}

}  // namespace

std::string name_of(std::string_view first, std::string_view second) {
  const std::string both = std::string(first) + '\0' + std::string(second);
  std::array<unsigned char, 16> hash;
  crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const unsigned char*>(both.data()), both.size(),
                     nullptr, 0);
  return hex_text(hash);
}

FolderLock::~FolderLock() {
  if (file_ >= 0) ::close(file_);
}

Status FolderLock::take(const std::string& folder) {
  std::error_code failed;
  const bool made = fs::create_directories(folder, failed);
  if (failed) return error(Code::kIo, "{}: the folder cannot be made: {}", folder, failed.message());
  if (made) fs::permissions(folder, fs::perms::owner_all, failed);
  const std::string path = folder + "/lock";
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kOwnerOnly);
  if (file_ < 0) return system_error(path);
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0)
    return error(Code::kIo, "{}: another process uses this folder; give each server one of its own", folder);
  return {};
}

std::vector<std::string> KnowledgeJournal::files(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    const fs::path& path = entry.path();
    if (path.extension() == kEnding) out.push_back(path.string());
    if (path.extension() == kAside && path.stem().extension() == kEnding) ::unlink(path.c_str());
  }
  std::ranges::sort(out);
  return out;
}

Result<std::unique_ptr<KnowledgeJournal>> KnowledgeJournal::create(const std::string& folder, const Owner& owner,
                                                                   const Sync& sync) {
  const std::string path = folder + "/" + file_name(owner);
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kOwnerOnly);
  if (file < 0) return system_error(path);
  std::unique_ptr<KnowledgeJournal> out(new KnowledgeJournal(path, file, sync));
  Status written = out->append(head_line(owner));
  if (written.ok()) written = sync_folder(folder);
  if (!written.ok()) {
    out->forget();
    return written.error();
  }
  return out;
}

Result<std::unique_ptr<KnowledgeJournal>> KnowledgeJournal::open(const std::string& path, Owner& owner,
                                                                 const Line& line, const Sync& sync) {
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return system_error(path);
  std::unique_ptr<KnowledgeJournal> out(new KnowledgeJournal(path, file, sync));
  KVILT_ASSIGN(const std::string text, read_all(file, path));
  int number = 0;
  size_t at = 0;
  for (size_t end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const Json json = Json::parse(text.begin() + static_cast<ptrdiff_t>(at), text.begin() + static_cast<ptrdiff_t>(end),
                                  nullptr, false);
    Status read = json.is_discarded() ? error(Code::kCorrupt, "this is not JSON") : Status{};
    if (read.ok()) read = number == 0 ? read_head(json, owner) : line(json, end + 1 - at);
    ++number;
    if (!read.ok())
      return error(read.error().code, "{}:{}: {} (move the file away to start without it)", path, number,
                   read.error().message);
  }
  if (number == 0 && is_unborn(text)) {
    spdlog::warn("{}: a crash ended the making of this knowledge base; the file is deleted", path);
    out->forget();
    return std::unique_ptr<KnowledgeJournal>();
  }
  if (number == 0)
    return error(Code::kCorrupt, "{}: its first line has no end (move the file away to start without it)", path);
  out->size_ = static_cast<int64_t>(at);
  if (at < text.size() && ::ftruncate(file, static_cast<off_t>(at)) != 0) return system_error(path);
  return out;
}

KnowledgeJournal::Sync KnowledgeJournal::system_sync() {
  return [](int file) { return ::fdatasync(file); };
}

KnowledgeJournal::~KnowledgeJournal() { ::close(file_); }

Status KnowledgeJournal::append(std::string_view lines) {
  KVILT_TRY(add(lines));
  Status synced = sync();
  if (!synced.ok()) {
    size_ -= static_cast<int64_t>(lines.size());
    (void)!::ftruncate(file_, static_cast<off_t>(size_));
  }
  return synced;
}

Status KnowledgeJournal::sync() {
  if (sync_(file_) != 0) return system_error(path_);
  return {};
}

Result<std::unique_ptr<KnowledgeJournal>> KnowledgeJournal::begin_again(const Owner& owner) const {
  const std::string path = path_ + std::string(kAside);
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, kOwnerOnly);
  if (file < 0) return system_error(path);
  std::unique_ptr<KnowledgeJournal> out(new KnowledgeJournal(path, file, sync_));
  if (Status head = out->add(head_line(owner)); !head.ok()) {
    out->forget();
    return head.error();
  }
  return out;
}

Result<bool> KnowledgeJournal::take_place() {
  const std::string to = path_.substr(0, path_.size() - kAside.size());
  if (::rename(path_.c_str(), to.c_str()) != 0) {
    spdlog::warn("{}: it is mostly void lines, and the file that was written anew could not take its place",
                 system_error(to).message);
    forget();
    return false;
  }
  path_ = to;
  KVILT_TRY(sync_folder(fs::path(to).parent_path().string()));
  return true;
}

Status KnowledgeJournal::add(std::string_view lines) {
  for (size_t done = 0; done < lines.size();) {
    const ssize_t n =
        ::pwrite(file_, lines.data() + done, lines.size() - done, static_cast<off_t>(size_) + static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const Error why = system_error(path_);
      (void)!::ftruncate(file_, static_cast<off_t>(size_));  // else the next line is written over it
      return why;
    }
    done += static_cast<size_t>(n);
  }
  size_ += static_cast<int64_t>(lines.size());
  return {};
}

void KnowledgeJournal::forget() { ::unlink(path_.c_str()); }

}  // namespace kvilt::server
