// kernels/x86/pack.h: re-orders a weight into blocks of 16 rows (kernels.h shows the layout); no bit of a weight is
// lost, and the size stays nearly the same.
#pragma once

#include <memory>

#include "base/mutex.h"
#include "kernels/backend.h"
#include "kernels/x86/kernels.h"
#include "tensor/view.h"

namespace kvilt::x86 {

struct BlockedWeight : PackedWeight {
  int64_t block_bytes = 0;
  int64_t segment = 0;  // groups; see kernels.h
  bool pairs = false;   // BF16 that meets rows of bf16 pairs
  const std::byte* blocks = nullptr;
  std::shared_ptr<const void> owner;  // of `blocks`, and of other weights' blocks
};

// Counts every change of what pack() writes; linear_test.cc holds a checksum of its output for this number.
inline constexpr uint32_t kLayoutVersion = 2;  // 2: segments

bool is_float(DType dtype);

// Gives out memory for weights from large slabs: the kernel backs those with huge pages, and reading one line after the
// other is then a third faster than from pages of 4 KB (35 against 26 GB/s on a Zen 4 core). A slab that nobody uses any
// more is used again: 2 MB that are mapped and cleared take 1.4 ms, others .24. Any thread.
class WeightMemory {
 public:
  struct Slice {
    std::shared_ptr<const Buffer> slab;
    std::byte* data;
  };
  Slice take(size_t bytes);

 private:
  Mutex mutex_;
  std::shared_ptr<const Buffer> slab_ KVILT_GUARDED_BY(mutex_);  // the last one, partly used
  size_t used_ KVILT_GUARDED_BY(mutex_) = 0;
};

// REQUIRES: K is a multiple of the dtype's block. pairs: bf16 pairs are multiplied on this machine.
std::unique_ptr<BlockedWeight> pack(const WeightView& w, bool pairs, WeightMemory& memory, ThreadPool& pool);
// See Backend::adopt.
std::unique_ptr<BlockedWeight> adopt(const WeightView& w, bool pairs, std::span<const std::byte> image,
                                     std::shared_ptr<const void> owner);

}  // namespace kvilt::x86
