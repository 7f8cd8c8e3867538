#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace kvilt {

Result<MappedFile> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return error(errno == ENOENT ? Code::kNotFound : Code::kIo, "{}: cannot open: {}", path, std::strerror(errno));
  }
  struct stat info {};
  const bool good = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
  void* data = good ? ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
  const int why = errno;
  ::close(fd);
  if (!good) return error(Code::kIo, "{}: not a regular file, or empty", path);
  if (data == MAP_FAILED) return error(Code::kIo, "{}: cannot map: {}", path, std::strerror(why));
  return MappedFile(path, static_cast<const std::byte*>(data), static_cast<size_t>(info.st_size));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<std::string> read_file(const std::string& path, size_t max_bytes) {
  auto file = MappedFile::open(path);
  if (!file.ok()) return file.error();
  const auto bytes = file->bytes();
  if (bytes.size() > max_bytes) {
    return error(Code::kTooLong, "{}: {} bytes, more than the {} allowed", path, bytes.size(), max_bytes);
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace kvilt
