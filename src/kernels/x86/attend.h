// kernels/x86/attend.h: attention over spans, column sums, realignment and RoPE for AVX2 and AVX-512.
// Role:       called by the x86 backends; contracts are those of Backend (kernels/backend.h). These functions plan
//             (work lists, memory, parallel loops) and are compiled without -m flags; tiles run in attend_tile.cc,
//             built per ISA.
// Idea:       online softmax (arXiv:2112.05682, arXiv:2205.14135) over blocks of kKeyBlock logical positions, in
//             super-blocks of kSuperBlock of them that start afresh and are merged in order by log-sum-exp. Decode may
//             run super-blocks in parallel: the arithmetic is the same, so the bits are.
// Invariants: a row's bits depend on its q, its position and the (position -> k, v, rotation) map that it sees, on
//             nothing else.
// Threads:    attend, column_sums and rope run on the pool; realign on the caller. Scratch is kept per thread.
// Requires:   the machine has the instructions (dispatch.h checks); shape.kv is a KV type (tensor/kv_row.h);
//             E <= 512; rotary_dim is even and <= E.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/x86/attend_tile.h"

namespace kvilt::x86 {

// What an instruction set computes attention with.
struct AttendIsa {
  const TileKernels& plain;                           // fp32 products, for any shape
  const TileKernels& (*for_shape)(const TileShape&);  // those that are fastest for a shape
};

void attend(const AttendIsa& isa, const AttendShape& shape, std::span<const AttendTask> tasks, ThreadPool& pool);
// Tasks with the same `sums` are added in the order of the list.
void column_sums(const AttendIsa& isa, const AttendShape& shape, std::span<const ColumnSumTask> tasks,
                 ThreadPool& pool);
void realign(const AttendIsa& isa, const AttendShape& shape, const void* src, const float* rotation, int64_t count,
             void* dst);
void rope(const AttendIsa& isa, Mat<float> x, int E, std::span<const int32_t> pos, const RopeConfig& config,
          ThreadPool& pool);

}  // namespace kvilt::x86
