// forward/attend_pass.h: attention of a step's rows at one layer, chunk by chunk: a task per KV head with the spans that
// it sees, then what probes and decode rules take of it.
// Role:       the driver's layer calls run() once, with queries that are projected and rotated.
// Invariants: a task's spans hold each position once; a row's result depends on its own keys only.
// Threads:    the engine thread; kernels run on the pool. A decode step without a decode rule allocates nothing.
// Not here:   what probes measure (probes.h), which keys a decode rule keeps (selected_keys.h).
#pragma once

#include <span>
#include <vector>

#include "forward/batch_rows.h"
#include "forward/chunk.h"
#include "forward/far_rows.h"
#include "forward/prepared_model.h"
#include "forward/probes.h"
#include "forward/sparse_rows.h"
#include "forward/visible_keys.h"

namespace kvilt {

class AttendPass {
 public:
  AttendPass(const PreparedModel& model, ThreadPool& pool)
      : model_(model), pool_(pool), probes_(model, pool), sparse_(model, pool), visible_(model), far_(model) {}

  struct At {
    int layer = 0;
    bool probes = true;  // whether the layer's probes look now
  };
  // out = attention of q, whose rows are `rows`. Both are rows x (H E).
  void run(std::span<Chunk> chunks, At at, const BatchRows& rows, Mat<float> q, Mat<float> out);
  // Gives the memory that is kept from call to call back.
  void release() {
    lists_ = {};
    sparse_.release();
    visible_.release();
    far_.release();
  }

 private:
  // The rows that attend.
  struct Batch {
    const BatchRows& rows;
    Mat<float> q, out;
  };
  RowsAt rows_at(size_t i, int layer, const Batch& batch);
  void find_masks(const Chunk& chunk, int layer);
  void choose(Chunk& chunk, size_t i, int layer, const Batch& batch);
  void add_tasks(Chunk& chunk, size_t i, int layer, const Batch& batch);
  bool sees_far(const Chunk& chunk, int layer) const;
  const Runs* add_seen(Chunk& chunk, const RowsAt& rows, const Runs& unseen);
  void add_visible(Chunk& chunk, size_t i, int layer, const Batch& batch);
  void add_far(Chunk& chunk, size_t i, int layer, const Batch& batch);
  void add_sights(Chunk& chunk, size_t i, int layer, const Batch& batch);
  void probe(std::span<Chunk> chunks, int layer, const BatchRows& rows);
  void measure_held(Chunk& chunk, size_t i, int layer, const Batch& batch);
  void try_patterns(Chunk& chunk, size_t i, int layer, const Batch& batch);
  void tell_keys(Chunk& chunk, size_t i, int layer, const Batch& batch);

  const PreparedModel& model_;
  ThreadPool& pool_;
  ProbePass probes_;
  SparseRows sparse_;
  VisibleKeys visible_;
  FarRows far_;
  struct Lists {  // kept from call to call
    std::vector<KvSpan> spans;
    std::vector<size_t> span_first;  // task t's spans are [span_first[t], span_first[t + 1]), if it has none of its own
    std::vector<AttendTask> tasks;   // of each chunk that attends, one per KV head; with sights more
    std::vector<size_t> chunk_first;  // of the tasks of each chunk
    std::vector<const Runs*> seen;    // of each chunk: the positions of its keys by rank; null: they are at their own
    std::vector<float> lse;
    std::vector<int> sparse_heads;
    std::vector<KeyMask> masks;  // of a chunk's heads
  };
  Lists lists_;
};

}  // namespace kvilt
