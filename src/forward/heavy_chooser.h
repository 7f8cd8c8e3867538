// forward/heavy_chooser.h: keys chosen by the attention of all rows so far, and never taken back: H2O
// (arXiv:2306.14048).
// Idea:       a row's weights are exp(score - lse): one more product with the keys, for each row of the prompt's last
//             stage and of the answer. They are summed by key (plan/heavy_keys.h), of those that are in.
// Invariants: weights are summed row by row, in double: a choice does not depend on how the prompt was cut into chunks.
//             Rows of an exact prefix run for it; those of placed pieces count where they are computed. A row that saw
//             few keys, in a sparse prompt, weighs with the normaliser of these: a key that it did not see counts 2 at
//             most.
// Threads:    the engine thread; kernels run on the pool, and heads choose there, each its own.
// Cost:       half of the prompt's attention once more; 8 bytes for each (layer, KV head, key that is in).
#pragma once

#include "forward/key_chooser.h"
#include "plan/heavy_keys.h"

namespace kvilt {

class HeavyChooser : public KeyChooser {
 public:
  HeavyChooser(const DecodeRule& rule, const ModelConfig& config, int32_t prefill_len)
      : rule_(rule),
        config_(config),
        prefill_len_(prefill_len),
        keys_(static_cast<size_t>(config.L) * static_cast<size_t>(config.G)) {}

  std::vector<Runs> choose(const KeySource& from, LayerRow at, const float* q, std::span<const int> heads,
                           ChoiceCost& cost) override;
  bool wants(int32_t pos) const override { return true; }
  ChoiceCost attended(const KeySource& from, const AttendedQueries& rows) override;

 private:
  struct Looked {  // of one head: a row's weights by rank, row by row
    AttendTask task;
    std::vector<KvSpan> spans;
    std::vector<int32_t> ranks;
    std::vector<float> weights;
    int32_t keys = 0;  // positions that the last row may see
  };
  Looked look(const KeySource& from, const AttendedQueries& rows, Run part, int head) const;
  void add(const Looked& looked, int64_t rows, HeavyKeys& to) const;
  ChoiceCost add_rows(const KeySource& from, const AttendedQueries& rows, Run part);

  const DecodeRule rule_;
  const ModelConfig& config_;
  const int32_t prefill_len_;
  std::vector<HeavyKeys> keys_;  // layer * G + head
};

}  // namespace kvilt
