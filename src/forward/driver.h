// forward/driver.h: computes what plans say. It knows no method: the dense pass, a decode step, SparseX and every later
// policy are rows, write sets, views and probes to it (DESIGN 1).
//
// One run() takes chunks (parts of bands of several sequences) that share the layers [layer_begin, layer_end) and does:
//   for each layer:  norm; q of the rows that leave it, k and v of the rows it writes; q/k norm; rope
//                    store k, v (and carry their change over, forward/carry.h);  x += Wo attend(q, spans)   per
//                    sequence and KV head;   x += FFN(norm(x)), of the rows that the stage's ffn rule names
//                    (a model with post_norms: x += norm(Wo attend(q, spans));   x += norm(FFN(norm(x))))
//   at a cut:        store k, v of W(cut); probes; keep the rows' hidden states for the next band
// Invariants: row-invariant like its kernels: a row's result does not depend on the chunk, the batch or the
//             thread count.
// Threads:    the engine thread.
// Not here:   which rows (plan/), who runs when (sched/), sampling (sampler.h).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "forward/batch_rows.h"
#include "forward/carry.h"
#include "forward/hidden_rows.h"
#include "forward/prepared_model.h"
#include "kv/page_table.h"
#include "plan/plan.h"

namespace kvilt {

// Work that was done, for one sequence's account.
struct Work {
  double linear_flops = 0, attention_flops = 0, bytes = 0;
  Work& operator+=(const Work& other);
};

// A part of one band of one sequence: its rows with positions in `range`.
struct Chunk {
  PageTable* kv = nullptr;
  const Plan* plan = nullptr;
  const Stage* stage = nullptr;
  const Band* band = nullptr;
  Run range;
  std::span<const int32_t> tokens;  // by position
  HiddenRows* hidden = nullptr;     // read at the start of a later band, written at a cut
  CarryState* carry = nullptr;      // of a stage that carries
  std::span<Probe> probes;          // one per stage->probes; score has prompt_len entries
  float* logits = nullptr;          // V values of each row that leaves the last layer; null: not wanted
  Work work;                        // added to
};

class Driver {
 public:
  Driver(const PreparedModel& model, ThreadPool& pool);
  ~Driver();

  // REQUIRES: all chunks have the same layers and cut; every written position has its slot.
  void run(std::span<Chunk> chunks);

 private:
  using Rows = BatchRows;
  struct Scratch;
  void start(std::span<Chunk> chunks);
  void layer(std::span<Chunk> chunks, int l);
  void cut(std::span<Chunk> chunks, int l);
  void project(std::span<Chunk> chunks, int l, const Rows& write, const Rows& query);
  void turn(std::span<Chunk> chunks, int l, const Rows& rows, Mat<float> x);
  void attend(std::span<Chunk> chunks, int l, const Rows& query, bool with_probes);
  void probe(std::span<Chunk> chunks, int l, const Rows& query);
  void look(Chunk& chunk, const ProbeSpec& spec, std::span<const AttendTask> heads, std::vector<double>& score);
  void store(Chunk& chunk, const FreshRows& rows);
  Rows& choose_fed(std::span<Chunk> chunks, int l);
  void feed_some(std::span<Chunk> chunks, int l, Rows& fed);
  void feed_forward(std::span<Chunk> chunks, int l);
  MatmulJob residual_job(const PreparedLinear& last, const std::vector<float>& norm);
  void add_normed(const std::vector<float>& norm);
  void experts(std::span<Chunk> chunks, int l);
  void logits(std::span<Chunk> chunks);
  void linear(std::span<Chunk> chunks, const Rows& rows, Mat<const float> x, std::span<const MatmulJob> jobs);
  void ffn(std::span<Chunk> chunks, const Rows& rows, Mat<const float> x, const FfnJob& job);
  void charge(std::span<Chunk> chunks, const Rows& rows, const PackedWeight& w);

  const PreparedModel& model_;
  ThreadPool& pool_;
  CarryPass carry_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace kvilt
