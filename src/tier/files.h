// tier/files.h: the few things that a tier does with files, so that tests can make each of them fail.
// Invariants: only plain files are read and written: whoever can write the folder may put a pipe there, which would hold
//          who opens it for ever.
// Errors:  kExhausted where the disk or the user's share of it is full, kNotFound, else kIo; the message names the file.
// Threads: any, one file each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvilt/result.h"

namespace kvilt {

class Files {
 public:
  virtual ~Files() = default;
  // A file of these bytes, readable by its owner only; they are on the disk when it returns. An older one is replaced.
  // What a failure leaves is removed.
  virtual Status write(const std::string& path, std::span<const std::byte> bytes);
  // All of `out`, from byte `offset` on; kCorrupt where the file ends before.
  virtual Status read(const std::string& path, int64_t offset, std::span<std::byte> out);
  virtual Status write_at(int fd, int64_t offset, std::span<const std::byte> bytes);
  virtual Status sync(int fd);
  virtual Status remove(const std::string& path);  // one that is not there is removed already
  // All names in a folder, or an error: what could not be listed may be there.
  virtual Result<std::vector<std::string>> list(const std::string& folder);
  // Names that came and went in the file's folder are on the disk.
  virtual Status sync_folder_of(const std::string& path);
  // As write(), all at once: whoever reads it finds the old bytes or these. The name is on the disk too.
  Status replace(const std::string& path, std::span<const std::byte> bytes);
};

}  // namespace kvilt
