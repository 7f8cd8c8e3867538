#include "tier/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/open_file.h"

namespace kvilt {
namespace {

constexpr size_t kMostAtOnce = size_t{64} << 20;

Error failed(const std::string& what) {
  const Code code = errno == ENOSPC || errno == EDQUOT || errno == EFBIG ? Code::kExhausted
                    : errno == ENOENT                                    ? Code::kNotFound
                                                                         : Code::kIo;
  return error(code, "{}: {}", what, std::strerror(errno));
}

bool is_plain(int fd) {
  struct stat about {};
  return ::fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
}

}  // namespace

Status Files::write_at(int fd, int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), std::min(bytes.size(), kMostAtOnce), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed("write");
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += n;
  }
  return {};
}

Status Files::sync(int fd) {
  if (::fdatasync(fd) != 0) return failed("sync");
  return {};
}

Status Files::write(const std::string& path, std::span<const std::byte> bytes) {
  OpenFile file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, 0600));
  if (file.fd() < 0)
    return errno == ENOENT ? system_error(path) : failed(path);  // its folder is gone: no missing piece
  Status done = is_plain(file.fd()) ? write_at(file.fd(), 0, bytes) : Status(Error{Code::kIo, "not a plain file"});
  if (done.ok()) done = sync(file.fd());
  if (done.ok() && !file.close()) done = failed(path);
  if (done.ok()) return {};
  ::unlink(path.c_str());
  return error(done.error().code, "{}: {}", path, done.error().message);
}

Status Files::read(const std::string& path, int64_t offset, std::span<std::byte> out) {
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.fd() < 0) return failed(path);
  if (!is_plain(file.fd())) return error(Code::kCorrupt, "{}: not a plain file", path);
  while (!out.empty()) {
    const ssize_t n = ::pread(file.fd(), out.data(), std::min(out.size(), kMostAtOnce), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed(path);
    if (n == 0) return error(Code::kCorrupt, "{}: it ends at byte {}; {} more were written", path, offset, out.size());
    out = out.subspan(static_cast<size_t>(n));
    offset += n;
  }
  return {};
}

Status Files::remove(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return failed(path);
  return {};
}

Result<std::vector<std::string>> Files::list(const std::string& folder) {
  std::vector<std::string> out;
  std::error_code wrong;
  for (std::filesystem::directory_iterator at(folder, wrong), end; !wrong && at != end; at.increment(wrong))
    out.push_back(at->path().filename().string());
  if (wrong) return error(Code::kIo, "{}: {}", folder, wrong.message());
  return out;
}

Status Files::replace(const std::string& path, std::span<const std::byte> bytes) {
  const std::string next = path + ".next";
  KVILT_TRY(write(next, bytes));
  if (::rename(next.c_str(), path.c_str()) != 0) {
    const Error refused = failed(path);
    ::unlink(next.c_str());
    return refused;
  }
  return sync_folder_of(path);
}

Status Files::sync_folder_of(const std::string& path) {
  const std::string folder = path.substr(0, path.find_last_of('/'));
  const OpenFile opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.fd() < 0 || ::fsync(opened.fd()) != 0) return failed(folder);
  return {};
}

}  // namespace kvilt
