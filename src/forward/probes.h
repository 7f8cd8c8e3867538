// forward/probes.h: what probes measure while a stage runs (plan/plan.h, ProbeSpec): a function for each estimator.
// Role:       two steps of the driver's layer: compare() before K and V are stored, look() after attention.
// Idea:       attention's own normalisers (lse) suffice. A weight is exp(score - lse); a view's share of a row's
//             attention is exp(lse of the view - lse of all): exact, and no matrix of weights is stored
//             (docs/math/column_sums.md).
// Invariants: a probe's rows are added one by one, so that its sums do not depend on the chunks but for rounding.
// Threads:    the engine thread; the kernels run on the pool.
// Cost:       look(): attention of the probe's rows once more (q k only), in full before it with key_end, and once per
//             view for kOutside; kWeights keeps 4 bytes per query head, row and position. compare(): a pass over the
//             changes.
// Not here:   which probes a method wants (policy/), how far K and V changed (forward/carry.h).
#pragma once

#include <span>
#include <vector>

#include "forward/carry.h"
#include "forward/prepared_model.h"
#include "plan/plan.h"

namespace kvilt {

// The rows of one chunk that attended at one layer; among them are the probes' rows.
struct AttendedRows {
  int layer = 0;
  int32_t prompt_len = 0;
  DType kv_type = DType::kF32;
  std::span<const AttendTask> heads;  // one per KV head, all of the same rows, with lse
  std::span<const int32_t> pos = {};  // of the rows; empty: as the tasks have it
  const Runs* seen = nullptr;         // the keys' positions, where tasks name rows and keys by rank
  const PageTable* kv = nullptr;      // for kQueries and kBlockKeys
};

class ProbePass {
 public:
  ProbePass(const PreparedModel& model, ThreadPool& pool) : model_(model), pool_(pool) {}

  // Adds what the stage's probes at this layer find in the attention of rows. probes: one per stage.probes, as
  // empty_probe() made them. Returns the floating point operations.
  double look(const Stage& stage, const AttendedRows& rows, std::span<Probe> probes);

  // Whether a probe at this layer compares K or V with their placed twins.
  static bool compares(const Stage& stage, int layer);
  // Adds what such probes find in the rows' changes. Without one of them `changes` is not read.
  static void compare(const Stage& stage, const FreshRows& rows, const Changes& changes, std::span<Probe> probes);

 private:
  // The rows of one probe, gathered: n of them, G x n x group queries.
  struct Looking {
    std::vector<int32_t> pos, at;  // as kernels take them (ranks, where keys are read by rank), and positions
    std::vector<int64_t> from;     // their places in AttendedRows
    std::vector<float> lse;
    FloatMat q, out;                // row g * n + r: KV head g of row r
    std::vector<AttendTask> tasks;  // by KV head
    int64_t size() const { return static_cast<int64_t>(pos.size()); }
  };
  bool gather(const ProbeSpec& spec, const AttendedRows& rows);
  double column_sums(const ProbeSpec& spec, const AttendedRows& rows, std::vector<double>& score);
  double outside(const ProbeSpec& spec, const AttendedRows& rows, std::vector<double>& sums);
  double weights(const ProbeSpec& spec, const AttendedRows& rows, std::vector<float>& out);
  // block_probes.cc
  void queries(const AttendedRows& rows, std::vector<double>& sums) const;
  void block_keys(const ProbeSpec& spec, const AttendedRows& rows, std::vector<double>& sums) const;
  double fade(const ProbeSpec& spec, const AttendedRows& rows, std::vector<double>& sums);

  const PreparedModel& model_;
  ThreadPool& pool_;
  Looking looking_;
};

}  // namespace kvilt
