// forward/layer_chooser.h: keys that a row chooses in one layer and sees in the layers above it: TidalDecode
// (arXiv:2410.05076).
// Idea:       in a selection layer the row sees all. Its own attention weights there say which keys the layers above it
//             see, up to the next selection layer, at this same row.
// Invariants: each KV head chooses for itself. Where a view or the model's window narrows a head in a selection layer,
//             the next layer in which it sees all selects for it.
// Threads:    the engine thread; kernels run on the pool.
// Cost:       half of a dense row's attention once more in each selection layer.
#pragma once

#include "forward/key_chooser.h"

namespace kvilt {

class LayerChooser : public KeyChooser {
 public:
  LayerChooser(const DecodeRule& rule, const ModelConfig& config)
      : rule_(rule), config_(config), heads_(static_cast<size_t>(config.G)) {}

  std::vector<Runs> choose(const KeySource& from, LayerRow at, const float* q, std::span<const int> heads,
                           ChoiceCost& cost) override;
  ChoiceCost attended(const KeySource& from, const AttendedQueries& rows) override;

 private:
  struct Head {
    int32_t pos = -1;  // the row that selects or has selected
    int layer = -1;    // where it does
    bool done = false;
    Runs keys;
  };
  ChoiceCost select(const KeySource& from, const AttendedQueries& row, std::span<const int> heads);

  const DecodeRule rule_;
  const ModelConfig& config_;
  std::vector<Head> heads_;
};

}  // namespace kvilt
