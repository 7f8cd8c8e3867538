#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/error.h"

namespace kvilt {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Maps the file at a multiple of kHugePage: reserves more addresses than needed and gives both ends back.
void* map_aligned(int fd, size_t size) {
  const size_t room = size + kHugePage;
  void* reserved = ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  const auto begin = reinterpret_cast<uintptr_t>(reserved), end = begin + room;
  const uintptr_t at = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t after = (at + size + page - 1) / page * page;
  if (at > begin) ::munmap(reserved, at - begin);
  if (end > after) ::munmap(reinterpret_cast<void*>(after), end - after);
  void* data = ::mmap(reinterpret_cast<void*>(at), size, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0);
  if (data == MAP_FAILED) {
    ::munmap(reinterpret_cast<void*>(at), after - at);
  } else {
    ::madvise(data, size, MADV_HUGEPAGE);  // what is not yet in the page cache is read into huge pages
  }
  return data;
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path, MapUse use) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe would wait for its writer
  if (fd < 0) {
    return error(errno == ENOENT ? Code::kNotFound : Code::kIo, "{}: cannot open: {}", path, std::strerror(errno));
  }
  struct stat info {};
  const bool good = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size > 0;
  const auto size = static_cast<size_t>(info.st_size);
  void* data = MAP_FAILED;
  if (good) data = use == MapUse::kWhole ? map_aligned(fd, size) : ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int why = errno;
  ::close(fd);
  if (!good) return error(Code::kIo, "{}: not a regular file, or empty", path);
  if (data == MAP_FAILED) return error(Code::kIo, "{}: cannot map: {}", path, std::strerror(why));
  const int64_t modified = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  return MappedFile(path, static_cast<const std::byte*>(data), size, modified);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      modified_ns_(other.modified_ns_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(modified_ns_, other.modified_ns_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

// In /proc/self/smaps a line "begin-end perms ..." begins a mapping, and lines "Name: N kB" follow.
size_t MappedFile::huge_bytes() const {
  std::ifstream smaps("/proc/self/smaps");
  const auto begin = reinterpret_cast<uintptr_t>(data_);
  bool inside = false;
  size_t bytes = 0;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t from = 0;
    const auto [end, bad] = std::from_chars(line.data(), line.data() + line.size(), from, 16);
    if (bad == std::errc() && end != line.data() + line.size() && *end == '-') {
      inside = from >= begin && from < begin + size_;
    } else if (inside && line.rfind("FilePmdMapped:", 0) == 0) {
      bytes += std::strtoull(line.c_str() + sizeof("FilePmdMapped:") - 1, nullptr, 10) << 10;
    }
  }
  return bytes;
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
