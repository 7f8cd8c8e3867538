// forward/sparse_rows.h: rows of a prompt that see few keys, as tasks of attention: what a plan's sparse rule
// (plan/sparse_rule.h) becomes at one layer.
// Role:       AttendPass hands a chunk's rows over and gets tasks for them: one per KV head and tile of rows.
// Idea:       the keys that any row of a tile sees are a set, read by rank (ranked_keys.h). So columns are exact,
//             distances are rounded up to the tile, blocks of keys are what they are, kernels know nothing of these, and
//             a choice that shows all is the dense pass.
// Invariants: a row always sees itself; what a block of rows sees is chosen for it alone (sparse_choice.h).
// Threads:    the engine thread; kernels run on the pool.
// Not here:   what is chosen (sparse_choice.h, plan/lines.h, plan/blocks.h).
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "forward/pooled_keys.h"
#include "forward/prepared_model.h"
#include "forward/ranked_keys.h"
#include "forward/sparse_choice.h"
#include "plan/plan.h"

namespace kvilt {

class SparseRows {
 public:
  SparseRows(const PreparedModel& model, ThreadPool& pool) : model_(model), pool_(pool), choice_(model, pool) {}

  // Appends the tasks of these KV heads; what they point to lives until clear(). REQUIRES: the heads see all but for
  // plan.sparse.
  SparseCost add_tasks(const Plan& plan, const PageTable& kv, const RowsAt& rows, std::span<const int> heads,
                       std::vector<AttendTask>& tasks);
  // Joins what the tasks' rows saw with the means of what they skipped. REQUIRES: the tasks have attended, with lse.
  void join_skipped(DType kv_type);
  // Whether join_skipped() has something to do, and so wants lse.
  bool skips() const { return !means_.empty(); }
  void release() {
    clear();
    choice_.release();
  }
  void clear() {
    tiles_.clear();
    pooled_.clear();
    means_.clear();
    looked_.clear();
  }

 private:
  struct Tile {
    RankedKeys keys;
    std::vector<int32_t> ranks;  // of its rows
  };
  struct Looked {  // rows of a block that looked at all keys, for one KV head; none if it did not choose by them
    std::vector<int64_t> rows;
    std::vector<float> lse;  // row * group + query head
    std::vector<double> missed,
        means;  // by query head, of these rows: the share that is skipped, and that of its means
  };
  struct Mean {         // of what a tile's rows skip
    int64_t first = 0;  // its first row
    Looked* looked = nullptr;
    AttendTask seen, skipped;
    std::vector<int32_t> ranks;
    std::vector<KvSpan> spans;
    std::vector<float> out, lse;  // as `seen` has them, without strides
    float log_count = 0;
  };
  double add_tile(const RowsOfBlock& tile, int head, const Runs& keys, std::vector<AttendTask>& tasks);
  void calibrate();
  static float correction(const Mean& mean, int64_t h);
  SparseCost pool_keys(const RowsOfBlock& block, std::span<const int> heads, const SparseChoice::Made& made);
  SparseCost add_mean(const RowsOfBlock& tile, int head, const PooledKeys& from, const Runs& keys,
                      const AttendTask& seen);

  const PreparedModel& model_;
  ThreadPool& pool_;
  SparseChoice choice_;
  std::deque<Tile> tiles_;
  std::deque<PooledKeys> pooled_;
  std::deque<Mean> means_;
  std::deque<Looked> looked_;
};

}  // namespace kvilt
