// engine/chunk_buffers.h: room for chunks between the thread that reads them and the one that copies them into pages.
// Idea:    a read of 51 MB into new memory for each chunk takes twice as long as into one buffer: half of it is page
//          faults (docs/results/store.md). So a chunk's room goes round. There are as many as the copier is behind.
// Threads: any.
// Not here: how much may be read ahead (disk_cache.h).
#pragma once

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
    if (free_.empty()) return {};
    std::vector<std::byte> out = std::move(free_.back());
    free_.pop_back();
    return out;
  }
  void give(std::vector<std::byte> buffer) {
    MutexLock lock(mutex_);
    free_.push_back(std::move(buffer));
  }
  // Gives their memory back.
  void clear() {
    std::vector<std::vector<std::byte>> dropped;  // outside of the lock
    MutexLock lock(mutex_);
    dropped.swap(free_);
  }
  size_t free() const {
    MutexLock lock(mutex_);
    return free_.size();
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::vector<std::byte>> free_ KVILT_GUARDED_BY(mutex_);
};

}  // namespace kvilt
