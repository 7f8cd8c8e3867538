// kernels/reference/attend.h: attention over spans in plain C++, the yardstick of every other backend.
// Role:       called by the reference backend; contracts are those of Backend (kernels/backend.h).
// Idea:       per (row, head): scores of all visible keys in position order, softmax in double, then the weighted values.
//             There are no blocks, so invariance to spans, chunks and threads holds by construction.
// Threads:    attend, column_sums and rope run on the pool; realign on the caller.
// Cost:       a few per cent of the x86 kernels' speed.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"

namespace kvilt::reference {

// REQUIRES of all: shape.kv is a KV type (tensor/kv_row.h); rotary_dim is even and <= E.
void attend(const AttendShape& shape, std::span<const AttendTask> tasks, ThreadPool& pool);

// Tasks with the same `sums` are added in the order of the list.
void column_sums(const AttendShape& shape, std::span<const ColumnSumTask> tasks, ThreadPool& pool);

void realign(const AttendShape& shape, const void* src, const float* rotation, int64_t count, void* dst);

void rope(Mat<float> x, int E, std::span<const int32_t> pos, const RopeConfig& config, ThreadPool& pool);

}  // namespace kvilt::reference
