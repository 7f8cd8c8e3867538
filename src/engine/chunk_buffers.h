// engine/chunk_buffers.h: room for chunks between the thread that reads them and the one that copies them into pages.
// Idea:    a read of 51 MB into new memory for each chunk takes twice as long as into one buffer: half of it is page
//          faults (docs/results/store.md). So a chunk's room goes round. A copier that keeps up needs two; of those that
//          one who does not has left behind, kMostFree are kept.
// Threads: any.
// Not here: how much may be read ahead (disk_cache.h).
#pragma once

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace kvilt {

class ChunkBuffers {
 public:
  // What it holds is anything. Empty, where all are in use.
  std::vector<std::byte> take() {
    MutexLock lock(mutex_);
    return size_ == 0 ? std::vector<std::byte>() : std::move(free_[--size_]);
  }
  void give(std::vector<std::byte> buffer) {
    MutexLock lock(mutex_);
    if (size_ < kMostFree) free_[size_++] = std::move(buffer);
  }
  // Gives their memory back.
  void clear() {
    MutexLock lock(mutex_);
    while (size_ > 0) free_[--size_] = {};
  }

 private:
  static constexpr size_t kMostFree = 4;

  Mutex mutex_;
  std::array<std::vector<std::byte>, kMostFree> free_ KVILT_GUARDED_BY(mutex_);
  size_t size_ KVILT_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvilt
