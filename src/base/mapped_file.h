// base/mapped_file.h: a read-only memory-mapped file. Weights are read through it; nothing is copied at start.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "kvilt/result.h"

namespace kvilt {

class MappedFile {
 public:
  // Errors: kNotFound, kIo (not a regular file, no permission, empty file).
  static Result<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, const std::byte* data, size_t size) : path_(std::move(path)), data_(data), size_(size) {}
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The whole file as a string. Errors: as open, and kTooLong beyond max_bytes.
Result<std::string> read_file(const std::string& path, size_t max_bytes);

}  // namespace kvilt
