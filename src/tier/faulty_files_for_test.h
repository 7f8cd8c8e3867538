// tier/faulty_files_for_test.h: a disk that fails.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "tier/files.h"

namespace kvilt {

// Fails where it is told to, or while a quota is full.
class FaultyFiles : public Files {
 public:
  Status write(const std::string& path, std::span<const std::byte> bytes) override {
    if (Status refused = refuse(std::ssize(bytes)); !refused.ok()) return refused;
    used_[path] = std::ssize(bytes);
    in_write_ = true;
    Status done = Files::write(path, bytes);
    in_write_ = false;
    return done;
  }
  Status write_at(int fd, int64_t offset, std::span<const std::byte> bytes) override {
    if (read_only) return error(Code::kIo, "read-only file system");
    if (torn && !in_write_) {  // the journal
      (void)Files::write_at(fd, offset, bytes.first(bytes.size() / 2));
      return error(Code::kIo, "input/output error");
    }
    return Files::write_at(fd, offset, bytes);
  }
  Status remove(const std::string& path) override {
    if (read_only) return error(Code::kIo, "read-only file system");
    used_.erase(path);
    return Files::remove(path);
  }
  Result<std::vector<std::string>> list(const std::string& folder) override {
    if (!unlisted.empty() && folder.ends_with(unlisted)) return error(Code::kIo, "too many open files");
    return Files::list(folder);
  }
  Status sync(int fd) override { return waits ? Files::sync(fd) : Status{}; }
  Status refuse(int64_t bytes) const {
    if (read_only) return error(Code::kIo, "read-only file system");
    int64_t used = 0;
    for (const auto& [path, size] : used_) used += size;
    if (used + bytes > quota) return error(Code::kExhausted, "no space left on device");
    return {};
  }
  bool read_only = false, torn = false;
  std::string unlisted;  // this folder cannot be listed
  int64_t quota = INT64_MAX;
  bool waits = true;  // until bytes are on the disk

 private:
  std::map<std::string, int64_t> used_;
  bool in_write_ = false;
};

}  // namespace kvilt
