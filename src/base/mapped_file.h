// base/mapped_file.h: a read-only memory-mapped file. Weights are read through it; nothing is copied at the start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kvilt/result.h"

namespace kvilt {

// kWhole: every byte will be read, again and again. The file is then mapped at a multiple of 2 MiB, so that the system
// can map huge pages where the page cache has them (Linux 6.16 on ext4, earlier on XFS).
enum class MapUse : uint8_t { kParts, kWhole };

class MappedFile {
 public:
  // Errors: kNotFound, kIo (not a regular file, no permission, empty file).
  static Result<MappedFile> open(const std::string& path, MapUse use = MapUse::kParts);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  int64_t modified_ns() const { return modified_ns_; }  // time of the last change, when it was opened

  // Bytes that are mapped as huge pages now; 0 where the system does not say. Reads /proc: a fraction of a millisecond.
  size_t huge_bytes() const;

 private:
  MappedFile(std::string path, const std::byte* data, size_t size, int64_t modified_ns)
      : path_(std::move(path)), data_(data), size_(size), modified_ns_(modified_ns) {}
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int64_t modified_ns_ = 0;
};

// The whole file as a string. Errors: as open(), and kTooLong beyond max_bytes.
Result<std::string> read_file(const std::string& path, size_t max_bytes);

}  // namespace kvilt
