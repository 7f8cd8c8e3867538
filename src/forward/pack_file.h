// forward/pack_file.h: packed weights in a file: written once, mapped by later starts. see docs/formats/pack.md.
// Invariants: a PackFile that opened is whole: magic, version, key, sizes and the checksum of every byte were right.
//             That guards against damage, not against tampering: whoever may write the folder may change the weights.
// Threads:    open and write on one thread, the checksums on the pool; immutable afterwards. Two processes may write
//             the same path at once: each writes a file of its own and renames it.
// Cost:       open reads every byte once at memory speed (400 MB: 20 ms), which also maps the pages.
// Not here:   which file belongs to which weights (pack_cache.h).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/keyed_hash.h"
#include "base/thread_pool.h"
#include "kvilt/result.h"
#include "tensor/dtype.h"

namespace kvilt {

// Where a packed weight came from: these bytes of the source file number `file`, read as rows x cols of dtype.
struct PackSource {
  uint32_t file = 0;
  DType dtype = DType::kF32;
  uint64_t offset = 0;
  int64_t rows = 0, cols = 0;
  auto operator<=>(const PackSource&) const = default;
};

struct PackEntry {
  PackSource source;
  std::span<const std::byte> image;
};

class PackFile {
 public:
  // Errors: kNotFound, kIo; kCorrupt (cut short, changed, of another version or key).
  static Result<PackFile> open(const std::string& path, const Digest& key, ThreadPool& pool);

  // The image's data is at a multiple of 64. Null: no such weight.
  const PackEntry* find(const PackSource& source) const;
  size_t size() const { return entries_.size(); }
  // Keeps the images alive.
  std::shared_ptr<const void> memory() const { return memory_; }
  bool mapped() const { return mapped_; }  // false: copied, since the system did not map huge pages

  // Writes a temporary file next to `path`, then renames it. Entries in any order, sources distinct.
  static Status write(const std::string& path, const Digest& key, std::vector<PackEntry> entries, ThreadPool& pool);

 private:
  std::vector<PackEntry> entries_;  // by source
  std::shared_ptr<const void> memory_;
  bool mapped_ = true;
};

}  // namespace kvilt
