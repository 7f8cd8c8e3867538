// forward/far_rows.h: rows that see the keys before some position as if all were equally far back (FarKeys of
// plan/plan.h), as tasks of attention.
// Role:       AttendPass has tasks for what else the rows see (visible_keys.h), gets one more for each KV head, and
//             joins the two when both have attended.
// Idea:       RoPE asks for distances only. A far key is turned back to position 0, and the query to where it would be
//             `distance` behind that: what turns a key is the same in every row and step, and what turns a query is the
//             same for every key. So one task serves all rows of a chunk. It takes the turned queries; kernels turn
//             these further for a key instead of the key (docs/math/rope_shift.md), so that keys are read where they
//             lie, and as they are stored.
// Invariants: what a row sees depends on its position alone, neither on the chunk nor on the batch.
// Cost:       a key is a span by itself: kernels turn the queries for each of them, and score it alone. Slow, as a
//             baseline of research may be. The angles are kept: E floats for each position at which a key was computed.
// Threads:    the engine thread.
// Not here:   which keys are far (policy/).
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "forward/looking_rows.h"
#include "forward/visible_keys.h"

namespace kvilt {

class FarRows {
 public:
  explicit FarRows(const PreparedModel& model) : model_(model) {}

  struct Keys {
    Runs positions;  // not empty
    int32_t distance = 0;
  };
  // Appends a task over these keys for each KV head; what they point to lives until clear(). REQUIRES: the last tasks
  // are these rows' others, one for each KV head; every row is behind the keys.
  VisibleKeys::Cost add_tasks(const Keys& keys, const PageTable& kv, const RowsAt& rows,
                              std::vector<AttendTask>& tasks);
  // Gives the rows' other tasks what they saw of far keys. REQUIRES: all tasks have attended, with lse.
  void join();
  // Whether join() has something to do, and so wants lse.
  bool joins() const { return !parts_.empty(); }
  void clear() { parts_.clear(); }
  void release() {
    clear();
    back_.clear();
  }

 private:
  struct Part {                              // the rows of one chunk
    std::vector<float> q, out, lse;          // rows x (H E), the same; by KV head, row and query head of its group
    std::vector<int32_t> ranks;              // of each row: the last key's
    std::vector<std::vector<KvSpan>> spans;  // by KV head
    std::vector<AttendTask> near, far;       // the same
  };
  void turn_queries(const Keys& keys, const PageTable& kv, const RowsAt& rows, std::vector<float>& q) const;
  void find_keys(const Keys& keys, const PageTable& kv, int layer, int head, std::vector<KvSpan>& out);
  const float* back_from(const RopeConfig& rope, int32_t pos);

  const PreparedModel& model_;
  std::deque<Part> parts_;
  std::map<const RopeConfig*, std::vector<std::vector<float>>> back_;  // by position: what turns a key there to 0
};

}  // namespace kvilt
