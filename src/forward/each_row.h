// forward/each_row.h: work on rows that do not depend on each other, a few rows to a task of the pool.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/thread_pool.h"

namespace kvilt {

// fn(r) for r in [0, rows), on the pool's threads.
template <class Fn>
void each_row(ThreadPool& pool, int64_t rows, Fn fn) {
  constexpr int64_t kRows = 16;  // of one task
  pool.parallel_for((rows + kRows - 1) / kRows, [&](int64_t task, int) {
    for (int64_t r = task * kRows; r < std::min(rows, (task + 1) * kRows); ++r) fn(r);
  });
}

}  // namespace kvilt
