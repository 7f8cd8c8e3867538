// forward/carry.h: what a stage that repairs does besides attention: it compares K and V just computed with their
// placed twins, and carries the change over to other placed positions of the group (plan/carry.h, docs/math/carry.md).
// Role:       two steps of the driver's layer: compare() before K and V are stored, carry() after.
// Contents:   for weights by content, how unlike two positions are is read once, at the group's first layer, from the
//             placed keys of three layers. Reading each layer's own keys anew does no better (docs/math/carry.md).
// Gain:       how much of the recomputed tokens' change tells about others differs by layer, head, K and V: each of
//             them is predicted from the others of its group, and what is carried is scaled by a = <predicted, true> /
//             |predicted|^2 (least squares, in [0, 1]) over the groups so far.
// Invariants: placed segments are only read; a group without recomputed positions is not touched. A chunk holds all
//             of a group's recomputed rows (sched/prefill.h) and groups come in order, so the result does not depend on
//             the chunk.
// Threads:    the engine thread; groups run on the pool.
// Cost:       a pass over the K and V of the mended groups, and 2 (m + n) n 2 G E operations a group and layer; once a
//             group 6 (m + n) n G E for the contents, and the weights' own (plan/carry.h).
#pragma once

#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include "forward/prepared_model.h"
#include "kv/page_table.h"
#include "plan/carry.h"
#include "plan/plan.h"

namespace kvilt {

// The rows of one chunk whose K and V are being stored at one layer. k, v: a row each, G x E, RoPE applied.
struct FreshRows {
  PageTable* kv = nullptr;
  int layer = 0;
  std::span<const int32_t> pos;
  Mat<float> k, v;
};

// K and V changes of rows: fresh - placed, K's before rotation; rows of zeros where nothing was placed.
struct Changes {
  FloatMat k, v;
  std::vector<uint8_t> placed;  // by row: 1 if there was a twin
};

// What a sequence's carry keeps from layer to layer and from chunk to chunk. A new one for every stage.
class CarryState {
 private:
  friend class CarryPass;
  struct Fit {
    double product = 0, square = 0;  // <predicted, true>, |predicted|^2
    void add(const float* predicted, const float* change, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        product += double{predicted[i]} * change[i];
        square += double{predicted[i]} * predicted[i];
      }
    }
    float gain() const { return square > 0 ? static_cast<float>(std::clamp(product / square, 0.0, 1.0)) : 1; }
  };
  std::vector<CarryWeights> weights_;   // by group: they serve all layers that write the same positions
  std::vector<std::vector<Fit>> fits_;  // by layer: K of every KV head, then V
  std::map<int, Fit> states_;           // by layer that rows enter
};

// The rows of one chunk as a layer begins that some of them enter with stored states.
struct EnteringRows {
  const PageTable* kv = nullptr;
  const Carry* carry = nullptr;
  const RowEntry* entry = nullptr;
  std::span<const int32_t> pos;
  Mat<float> x;  // a row each: the hidden state
};

class CarryPass {
 public:
  CarryPass(const PreparedModel& model, ThreadPool& pool) : model_(model), pool_(pool) {}

  void compare(const FreshRows& rows, Changes& out);
  // Where something was placed, it replaces the fresh rows in the KV heads that `heads` marks (1).
  void keep(const FreshRows& rows, std::span<const uint8_t> heads) const;
  // Where something was placed, the fresh rows become a mixture with it.
  void mix_with_placed(const FreshRows& rows, const Fate& fate) const;
  struct Cost {
    double flops = 0, bytes = 0;
  };
  // Mends the groups whose recomputed positions are among rows.pos; `written` is the layer's write set.
  Cost carry(const Carry& carry, const Runs& written, const FreshRows& rows, const Changes& changes, CarryState& state);
  // The rows that enter take over by how much the hidden states of their group's rows from below differ from the stored
  // ones, with the weights of the layer below and one gain for all of a state (carry_states.cc).
  Cost carry_states(const EnteringRows& rows, CarryState& state) const;

 private:
  struct Group;
  std::vector<Group> groups_of(const Carry& carry, const Runs& written, const FreshRows& rows, CarryState& state,
                               Cost& cost);
  double weigh_all(const Carry& carry, std::span<const size_t> which, const PageTable& kv, CarryState& state,
                   double& bytes);
  void read_contents(const PageTable& kv, const CarryWeights& group, FloatMat& out) const;
  static void gather(const Changes& changes, Group& group);
  void predict(const FreshRows& rows, Group& group) const;
  void mend(const Group& group, const Carry& carry, const FreshRows& rows) const;
  void load(const PageTable& kv, int layer, const PageTable::Placed& placed, int head, float* k, float* v) const;
  void need_angles(const PageTable& kv, int layer, std::span<const int32_t> positions);

  const PreparedModel& model_;
  ThreadPool& pool_;
  std::vector<std::vector<float>> angles_[2];  // by kind of RoPE and position: cos[R/2], sin[R/2]; empty until needed
};

}  // namespace kvilt
