// tensor/buffer.cc: Buffer of view.h: small ones from malloc, large ones mapped.
#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include "tensor/view.h"

namespace kvilt {
namespace {
constexpr size_t kMapFrom = size_t{4} << 20;  // below, malloc is cheaper than two system calls
}

Buffer::Buffer(size_t bytes) : bytes_((bytes + 63) / 64 * 64) {
  if (bytes_ == 0) return;
  if (bytes_ >= kMapFrom) {
    data_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    ::madvise(data_, bytes_, MADV_HUGEPAGE);
  } else {
    data_ = std::aligned_alloc(64, bytes_);
    if (!data_) throw std::bad_alloc();
  }
}

Buffer::~Buffer() {
  if (!data_) return;
  if (bytes_ >= kMapFrom) {
    ::munmap(data_, bytes_);
  } else {
    std::free(data_);
  }
}

}  // namespace kvilt
