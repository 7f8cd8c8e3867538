// forward/selected_keys.h: the keys that the rows of one sequence's answer see, by (layer, KV head), where its plan has a
// decode rule (plan/decode_rule.h).
// Role:       AttendPass asks it for a decode row's keys, and gives it the queries of rows that a later choice looks
//             with.
// Idea:       chosen keys are read where they lie, by their rank (ranked_keys.h): a set of all keys is the dense step.
// Invariants: heads that a view or the model's window narrows keep to that. Only rows that this request computed look:
//             behind an exact prefix these may be fewer than the rule's.
// Threads:    the engine thread; choose() runs its kernels on the pool.
// Cost:       queries x L x H x E floats, and the ranked keys. A choice is the product of those queries with all keys.
// Not here:   the choice of given scores (plan/), who says which rule (policy/).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "forward/prepared_model.h"
#include "forward/ranked_keys.h"
#include "kv/page_table.h"
#include "plan/plan.h"

namespace kvilt {

// A row of the answer at one layer.
struct LayerRow {
  int layer = 0;
  int32_t pos = 0;
};

class SelectedKeys {
 public:
  // prompt_len: of the request; its answer's rows are numbered from there. prefill_len: that and what of the answer is
  // computed again.
  SelectedKeys(const DecodeRule& rule, const ModelConfig& config, int32_t prompt_len, int32_t prefill_len);

  const DecodeRule& rule() const { return rule_; }

  // Rows at `pos` are to be told of by keep_query().
  bool wants_query(int32_t pos) const;
  // q: H x E, rotated; lse: by KV head and query head of the group, of what the row saw.
  void keep_query(int layer, int32_t pos, const float* q, std::span<const float> lse);

  // The row at `pos` of the answer chooses before it attends.
  bool chooses_at(LayerRow at) const;
  struct Cost {
    double flops = 0, bytes = 0;
  };
  // Chooses among the positions before `pos`, for the heads of the layer that see all; masks: by head.
  Cost choose(const PreparedModel& model, const PageTable& kv, std::span<const KeyMask> masks, LayerRow at,
              ThreadPool& pool);

  // The keys of a decode row and its rank among them; they live until the next call for this layer and head. Null: the
  // head sees what its view shows. REQUIRES: each row of the answer asks, in order.
  struct Seen {
    std::span<const KvSpan> spans;
    std::span<const int32_t> row;  // one
  };
  const Seen* seen(const PageTable& kv, const KeyMask& mask, LayerRow at, int head);

 private:
  struct Head {
    bool chosen = false;  // it keeps to a choice; never where a view or a window narrows it
    RankedKeys keys;
    int32_t until = 0, row = 0;  // they are of the positions before `until`
    Seen seen;
  };
  struct Queries {  // of one layer: row r is that of position pos[r], at r = position % queries
    FloatMat q;
    std::vector<float> lse;
    std::vector<int32_t> pos;
  };
  std::vector<int32_t> rows_before(LayerRow at) const;
  Cost sum_weights(const PreparedModel& model, const PageTable& kv, LayerRow at, ThreadPool& pool);

  const DecodeRule rule_;
  const ModelConfig& config_;
  const int32_t prompt_len_, prefill_len_;
  std::vector<Queries> queries_;             // by layer; empty where nobody looks
  std::vector<Head> heads_;                  // layer * G + head
  std::vector<uint8_t> chosen_;              // by layer: a row has chosen
  std::vector<int> open_;                    // heads of the layer that see all
  std::vector<std::vector<double>> scores_;  // of these
  std::vector<KvSpan> spans_;
};

}  // namespace kvilt
