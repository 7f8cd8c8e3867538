// forward/driver.h: computes what plans say. It knows no method: the dense pass, a decode step, SparseX and every later
// policy are rows, write sets, views and probes to it (docs/design/plan.md).
//
// One run() takes chunks (parts of bands of several sequences) that share the layers [layer_begin, layer_end) and does:
//   for each layer:  rows that enter here join (forward/annex_rows.h); norm; q of the rows that attend there, k and v of the rows it writes; q/k norm; rope
//                    store k, v (and carry their change over, forward/carry.h);  x += Wo attend(q, spans)   per
//                    sequence and KV head;   x += FFN(norm(x)), of the rows that the stage's ffn rule names
//                    (gemma 4: heads in the KV's layout behind the norms, forward/head_layout.h; x times the layer's scale)
//                    (a model with post_norms: x += norm(Wo attend(q, spans));   x += norm(FFN(norm(x))))
//   at a cut:        store k, v of W(cut); probes; keep the rows' hidden states for the next band
// Invariants: row-invariant like its kernels: a row's result does not depend on the chunk, the batch or the
//             thread count. A decode step allocates nothing (tests/hot_path_test.cc).
// Threads:    the engine thread.
// Not here:   which rows (plan/), who runs when (sched/), what they see and what probes measure (attend_pass.h), sampling
//             (sampler.h).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "forward/attend_pass.h"
#include "forward/batch_rows.h"
#include "forward/carry.h"
#include "forward/chunk.h"
#include "forward/prepared_model.h"

namespace kvilt {

class Driver {
 public:
  Driver(const PreparedModel& model, ThreadPool& pool);
  ~Driver();

  // REQUIRES: all chunks have the same layers and cut; every written position has its slot.
  void run(std::span<Chunk> chunks);
  // Gives the memory that is kept from step to step back. After a run() that threw, the next one finds all as at first.
  void release();

 private:
  using Rows = BatchRows;
  struct Scratch;
  // A cut splits its layer: one band stores K and V and runs the probes, the next one goes on with the rows that leave.
  enum class Part : uint8_t { kWhole, kBeforeCut, kAfterCut };
  void start(std::span<Chunk> chunks);
  void join(std::span<Chunk> chunks, int l);
  void layer(std::span<Chunk> chunks, int l);
  void cut(std::span<Chunk> chunks, int l);
  void choose_rows(std::span<Chunk> chunks, int l, Part part);
  void project(std::span<Chunk> chunks, int l);
  void rotate(std::span<Chunk> chunks, int l, const Rows& rows, Mat<float> x);
  void store(Chunk& chunk, const FreshRows& rows);
  void attend(std::span<Chunk> chunks, int l, Part part);
  void narrow(std::span<Chunk> chunks, int l);
  void choose_fed(std::span<Chunk> chunks, int l);
  void add_attended(std::span<Chunk> chunks, int l);
  void feed(std::span<Chunk> chunks, int l);
  void feed_rows(std::span<Chunk> chunks, int l, const Rows& rows, Mat<float> x);
  struct ExpertInputs {
    Mat<const float> router, experts;
  };
  void feed_experts(std::span<Chunk> chunks, int l, const Rows& rows, const ExpertInputs& in, Mat<float> x);
  void feed_beside(std::span<Chunk> chunks, int l, const Rows& rows, Mat<float> x);
  void add_layer_input(std::span<Chunk> chunks, int l);
  void add(Mat<const float> y, Mat<float> x);
  MatmulJob residual_job(const PreparedLinear& last, const std::vector<float>& norm, Mat<float> x);
  void add_normed(const std::vector<float>& norm, Mat<float> x);
  void scale(float by, Mat<float> x);
  void logits(std::span<Chunk> chunks);
  void score(Chunk& chunk, std::span<const int32_t> pos, Mat<const float> x);
  void linear(std::span<Chunk> chunks, const Rows& rows, Mat<const float> x, std::span<const MatmulJob> jobs);
  void ffn(std::span<Chunk> chunks, const Rows& rows, Mat<const float> x, const FfnJob& job);
  void charge(std::span<Chunk> chunks, const Rows& rows, const PackedWeight& w);

  const PreparedModel& model_;
  ThreadPool& pool_;
  CarryPass carry_;
  AttendPass attend_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace kvilt
