// forward/looking_rows.h: rows of one sequence that look at all keys before them at one layer, besides what they attend
// to: as tasks, one for each KV head.
// Role:       sparse prefill chooses lines by such rows, decode rules choose keys by the last ones, and measurements
//             compare with them.
// Invariants: tasks point into this: it neither moves nor changes while a kernel runs.
// Threads:    the engine thread; kernels run on the pool.
// Not here:   which rows look, and what is done with what they see.
#pragma once

#include <span>
#include <vector>

#include "forward/prepared_model.h"
#include "kv/page_table.h"
#include "tensor/view.h"

namespace kvilt {

// The rows of one chunk that attend at one layer. q and out: rows x (H E). lse: head h of KV head g's group and row r
// at (g * rows + r) * group + h, with the rows of the whole chunk where these are some of them.
struct RowsAt {
  int layer = 0;
  std::span<const int32_t> pos;
  Mat<float> q, out;
  float* lse = nullptr;
  int64_t of_chunk = 0;  // rows of the chunk; 0: these are all
  int64_t lse_rows() const { return of_chunk > 0 ? of_chunk : std::ssize(pos); }
  RowsAt part(int64_t begin, int64_t end, int64_t group) const {
    return {layer,
            pos.subspan(begin, end - begin),
            q.slice_rows(begin, end),
            out.slice_rows(begin, end),
            lse + begin * group,
            lse_rows()};
  }
};

class LookingRows {
 public:
  explicit LookingRows(const PreparedModel& model) : model_(model) {}
  LookingRows(const LookingRows&) = delete;
  LookingRows& operator=(const LookingRows&) = delete;

  // The next row, rising by position; q: H x E, rotated.
  void add(int32_t pos, const float* q);
  // After the last row: a task for each of `heads`, over the keys before `end`. lse is there to be filled, by attend()
  // or the caller.
  void find_keys(const PageTable& kv, int layer, std::span<const int> heads, int32_t end);
  // Of the heads[i] of find_keys(): row r and head h of its group at r * group + h.
  float* lse(size_t i) { return lse_.data() + static_cast<int64_t>(i) * rows() * group(); }
  void attend(DType kv_type, ThreadPool& pool);

  int64_t rows() const { return std::ssize(pos_); }
  std::span<const int32_t> pos() const { return pos_; }
  std::span<const AttendTask> tasks() const { return tasks_; }

 private:
  int64_t group() const { return model_.config().H / model_.config().G; }

  const PreparedModel& model_;
  std::vector<int32_t> pos_;
  std::vector<float> q_, out_, lse_;
  std::vector<KvSpan> spans_;
  std::vector<AttendTask> tasks_;
};

}  // namespace kvilt
