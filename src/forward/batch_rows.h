// forward/batch_rows.h: some rows of a step's batch: their positions, and the rows they were taken from. The driver's
// bookkeeping.
// Cost: vectors that keep their memory from step to step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/runs.h"
#include "forward/prepared_model.h"

namespace kvilt {

// Some rows of the batch, chunk by chunk, each chunk's by increasing position.
struct BatchRows {
  std::vector<int32_t> pos;    // logical position of each row
  std::vector<int64_t> index;  // row in the rows they were selected from
  std::vector<int64_t> first;  // chunk c's rows are [first[c], first[c + 1])
  bool all = false;            // index is 0, 1, 2, ...
  int64_t size() const { return static_cast<int64_t>(pos.size()); }
  int64_t size(size_t chunk) const { return first[chunk + 1] - first[chunk]; }
  std::span<const int32_t> pos_of(size_t chunk) const { return std::span(pos).subspan(first[chunk], size(chunk)); }
  void clear() {
    pos.clear();
    index.clear();
    first.assign(1, 0);
    all = false;
  }
  void push(int32_t p, int64_t from) {
    pos.push_back(p);
    index.push_back(from);
  }
};

// x's rows at rows.index; x itself if that is all of them.
inline Mat<const float> gather(const BatchRows& rows, Mat<const float> x, FloatMat& scratch) {
  if (rows.all) return x;
  const Mat<float> out = scratch.reshape(rows.size(), x.cols);
  for (int64_t r = 0; r < rows.size(); ++r) {
    std::copy_n(x.row(rows.index[r]), x.cols, out.row(r));
  }
  return out;
}

// x = its rows at rows.index. spare: memory, exchanged with x's.
inline void keep_rows(const BatchRows& rows, FloatMat& x, FloatMat& spare) {
  if (rows.all) return;
  gather(rows, x.view(), spare);
  std::swap(x, spare);
}

// The reverse of gather(): x's rows at rows.index = some. REQUIRES: rows.index is filled.
inline void scatter(const BatchRows& rows, Mat<const float> some, Mat<float> x) {
  for (int64_t r = 0; r < rows.size(); ++r) std::copy_n(some.row(r), x.cols, x.row(rows.index[r]));
}

// The rows of `from` at positions in runs(chunk), into out.
template <class RunsOf>
const BatchRows& select(const BatchRows& from, size_t chunks, RunsOf runs_of_chunk, BatchRows& out) {
  out.clear();
  for (size_t c = 0; c < chunks; ++c) {
    const Runs& runs = runs_of_chunk(c);
    size_t i = 0;
    for (int64_t r = from.first[c]; r < from.first[c + 1]; ++r) {
      const int32_t pos = from.pos[r];
      while (i < runs.size() && runs[i].end <= pos) ++i;
      if (i < runs.size() && runs[i].begin <= pos) out.push(pos, r);
    }
    out.first.push_back(out.size());
  }
  out.all = out.size() == from.size();
  return out;
}

// The rows r of `from` for which keep(r), asked in order, into out.
template <class Keep>
const BatchRows& select_if(const BatchRows& from, Keep keep, BatchRows& out) {
  out.clear();
  for (size_t c = 0; c + 1 < from.first.size(); ++c) {
    for (int64_t r = from.first[c]; r < from.first[c + 1]; ++r) {
      if (keep(r)) out.push(from.pos[r], r);
    }
    out.first.push_back(out.size());
  }
  out.all = out.size() == from.size();
  return out;
}

}  // namespace kvilt
