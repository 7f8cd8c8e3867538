// kernels/x86/pack.h: re-orders a weight into blocks of 16 rows (kernels.h shows the layout); bits are kept, bytes
// nearly so.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "kernels/x86/kernels.h"
#include "tensor/view.h"

namespace kvilt::x86 {

struct BlockedWeight : PackedWeight {
  Layout layout;
  Buffer blocks;
};

Layout layout_of(DType dtype, int64_t K);
bool is_float(DType dtype);

// REQUIRES: K is a multiple of the dtype's block.
std::unique_ptr<BlockedWeight> pack(const WeightView& w, ThreadPool& pool);

}  // namespace kvilt::x86
