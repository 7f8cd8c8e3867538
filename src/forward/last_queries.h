// forward/last_queries.h: keys chosen by the attention of the last rows: LoopServe, SnapKV and their kin.
// Idea:       the queries of the last rows are kept with the normalisers of what they paid. A choice is then one product
//             of these queries with the keys: no second pass for the normalisers, and values are not read.
// Invariants: all of the rule's rows look, as far as the prompt has them: those whose K and V are cached run for it
//             (DecodeRule::looking).
// Threads:    the engine thread; kernels run on the pool.
// Cost:       queries x L x H x E floats. A choice is the product of those queries with all keys.
#pragma once

#include "forward/key_chooser.h"

namespace kvilt {

class LastQueries : public KeyChooser {
 public:
  LastQueries(const DecodeRule& rule, const ModelConfig& config, int32_t prompt_len, int32_t prefill_len);

  std::vector<Runs> choose(const KeySource& from, LayerRow at, const float* q, std::span<const int> heads,
                           ChoiceCost& cost) override;
  bool wants(int32_t pos) const override;
  ChoiceCost attended(const KeySource& from, const AttendedQueries& rows) override;

 private:
  struct Queries {  // of one layer: row r is that of position pos[r], at r = position % queries
    FloatMat q;
    std::vector<float> lse;  // by row, KV head and query head of the group
    std::vector<int32_t> pos;
  };
  void keep(const AttendedQueries& rows, int64_t r);
  std::vector<int32_t> rows_before(LayerRow at) const;
  ChoiceCost sum_weights(const KeySource& from, LayerRow at, std::span<const int> heads);

  const DecodeRule rule_;
  const ModelConfig& config_;
  const int32_t prompt_len_, prefill_len_;
  std::vector<Queries> queries_;  // by layer
  std::vector<std::vector<double>> scores_;
};

}  // namespace kvilt
