// apps/bench/bench_folder.h: the cache folder of a measurement: a given one, or one that is made and goes with it.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "apps/command.h"
#include "base/open_file.h"

namespace kvilt {

class BenchFolder {
 public:
  // folder: EngineOptions::cache_dir; where it is empty it becomes the one that is made.
  explicit BenchFolder(std::string& folder) {
    if (!folder.empty()) return;
    made_ = (std::filesystem::temp_directory_path() / "kvilt_bench_XXXXXX").string();
    if (!::mkdtemp(made_.data())) fail(made_ + ": cannot be made; give --cache-dir");
    folder = made_;
  }
  ~BenchFolder() { remove(); }
  BenchFolder(const BenchFolder&) = delete;
  // Before its time: fail() ends the process and destroys nothing.
  void remove() {
    std::error_code ignored;
    if (!made_.empty()) std::filesystem::remove_all(made_, ignored);
    made_.clear();
  }

 private:
  std::string made_;
};

// The next read of the file comes from the disk. False: it cannot be opened.
inline bool drop_from_page_cache(const std::string& path) {
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd() < 0) return false;
  ::fdatasync(file.fd());
  ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  return true;
}

}  // namespace kvilt
