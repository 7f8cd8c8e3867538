#include "hub/hub_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReadBytes = 1 << 20;

Error of_system(const std::string& what, int number) {
  const bool full = number == ENOSPC || number == EDQUOT || number == EFBIG;
  return error(full ? Code::kExhausted : Code::kIo, "{}: {}", what, std::strerror(number));
}

Error of_system(const std::string& what) { return of_system(what, errno); }

Status make_folder(const fs::path& folder) {
  std::error_code bad;
  fs::create_directories(folder, bad);
  std::error_code unseen;
  if (bad && !fs::is_directory(folder, unseen)) return of_system(folder.string(), bad.value());
  return {};
}

// A name beside `path` that nobody else uses, and that is no model's.
fs::path scratch_of(const fs::path& path) {
  static std::atomic<int> count{0};
  return path.parent_path() / fmt::format(".kvilt-{}-{}.tmp", ::getpid(), count++);
}

Status move_over(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return {};
  const Error failed = of_system(to.string());
  ::unlink(from.c_str());
  return failed;
}

Status write_text_file(const fs::path& path, const std::string& text) {
  KVILT_TRY(make_folder(path.parent_path()));
  const fs::path scratch = scratch_of(path);
  const OpenFile file(::open(scratch.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.fd() < 0) return of_system(scratch.string());
  if (::write(file.fd(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    const Error failed = of_system(path.string());
    ::unlink(scratch.c_str());
    return failed;
  }
  return move_over(scratch, path);
}

// From the folder of snapshots/COMMIT/`path` to the repository's folder.
std::string way_up(const std::string& path) {
  std::string out = "../../";
  for (const char c : path) out += c == '/' ? "../" : "";
  return out;
}

}  // namespace

HubStore::HubStore(const std::string& hub, const HubName& name)
    : folder_(fs::path(hub) / name.folder()), locks_(fs::path(hub) / ".locks" / name.folder()) {}

bool HubStore::has(const RepoFile& file) const {
  std::error_code bad;
  const uintmax_t size = fs::file_size(blob(file), bad);
  return !bad && std::cmp_equal(size, file.size);
}

int64_t HubStore::begun_bytes(const RepoFile& file) const {
  std::error_code bad;
  const uintmax_t size = fs::file_size(incomplete(file), bad);
  return bad ? 0 : static_cast<int64_t>(std::min<uintmax_t>(size, static_cast<uintmax_t>(file.size)));
}

Result<std::optional<OpenFile>> HubStore::try_lock(const RepoFile& file) const {
  const fs::path path = locks_ / (file.blob + ".lock");
  KVILT_TRY(make_folder(locks_));
  OpenFile lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (lock.fd() < 0) return of_system(path.string());
  if (::flock(lock.fd(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EINTR) return std::optional<OpenFile>();
    return error(Code::kIo, "{}: {}; HF_HUB_CACHE names a folder on another file system", path.string(),
                 std::strerror(errno));
  }
  // Other programs remove the file of a lock that they let go: then this one guards nothing.
  struct stat mine {
  }, there{};
  const bool same = ::fstat(lock.fd(), &mine) == 0 && ::stat(path.c_str(), &there) == 0 &&
                    mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
  if (!same) return std::optional<OpenFile>();
  return std::optional<OpenFile>(std::move(lock));
}

Status HubStore::link(const fs::path& snapshot, const RepoFile& file) const {
  const fs::path path = snapshot / file.path;
  const std::string target = way_up(file.path) + "blobs/" + file.blob;
  KVILT_TRY(make_folder(path.parent_path()));
  std::error_code bad;
  if (fs::read_symlink(path, bad) == target && !bad) return {};
  const fs::path scratch = scratch_of(path);
  ::unlink(scratch.c_str());  // of a process of this number that died
  if (::symlink(target.c_str(), scratch.c_str()) != 0) return of_system(path.string());
  return move_over(scratch, path);
}

Status HubStore::publish(const RepoListing& listing, std::span<const RepoFile> files,
                         const std::string& revision) const {
  for (const RepoFile& file : files) KVILT_TRY(link(snapshot(listing.commit), file));
  if (revision == listing.commit) return {};
  return write_text_file(folder_ / "refs" / revision, listing.commit);
}

std::optional<int64_t> HubStore::free_bytes() const {
  std::error_code bad;
  fs::path folder = folder_;
  while (!fs::exists(folder, bad) && folder.has_parent_path() && folder != folder.parent_path())
    folder = folder.parent_path();
  const fs::space_info space = fs::space(folder, bad);
  if (bad || space.available == static_cast<uintmax_t>(-1)) return std::nullopt;
  return static_cast<int64_t>(std::min<uintmax_t>(space.available, INT64_MAX));
}

GrowingBlob::GrowingBlob(const HubStore& store, const RepoFile& file, OpenFile opened)
    : path_(store.incomplete(file).string()),
      final_path_(store.blob(file).string()),
      file_(file),
      opened_(std::move(opened)),
      hash_(std::make_unique<ContentHash>(file.blob, file.size)) {}

Result<GrowingBlob> GrowingBlob::open(const HubStore& store, const RepoFile& file, FunctionRef<bool()> stopped) {
  const fs::path path = store.incomplete(file);
  KVILT_TRY(make_folder(path.parent_path()));
  OpenFile opened(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (opened.fd() < 0) return of_system(path.string());
  GrowingBlob out(store, file, std::move(opened));
  KVILT_TRY(out.read_begun(stopped));
  return out;
}

Status GrowingBlob::read_begun(FunctionRef<bool()> stopped) {
  std::vector<std::byte> part(kReadBytes);
  while (true) {
    if (stopped()) return error(Code::kCancelled, "stopped");
    const ssize_t n = ::pread(opened_.fd(), part.data(), part.size(), bytes_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return of_system(path_);
    if (n == 0) return {};
    if (n > file_.size - bytes_) return restart();  // more than the file has: it was another program's
    hash_->add({part.data(), static_cast<size_t>(n)});
    bytes_ += n;
  }
}

Status GrowingBlob::append(std::span<const std::byte> bytes) {
  if (std::cmp_greater(bytes.size(), file_.size - bytes_))
    return error(Code::kCorrupt, "the server sends more than the {} bytes that the hub lists", file_.size);
  hash_->add(bytes);
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(opened_.fd(), bytes.data(), bytes.size(), bytes_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return of_system(path_);
    bytes_ += n;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

Status GrowingBlob::restart() {
  if (::ftruncate(opened_.fd(), 0) != 0) return of_system(path_);
  hash_ = std::make_unique<ContentHash>(file_.blob, file_.size);
  bytes_ = 0;
  return {};
}

Result<bool> GrowingBlob::finish() {
  CHECK(bytes_ == file_.size);
  if (hash_->hex() != file_.blob) {
    if (::unlink(path_.c_str()) != 0) return of_system(path_);
    return false;
  }
  if (::fdatasync(opened_.fd()) != 0) return of_system(path_);
  if (::rename(path_.c_str(), final_path_.c_str()) != 0) return of_system(final_path_);
  return true;
}

}  // namespace kvilt
