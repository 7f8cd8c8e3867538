// forward/page_chooser.h: pages of keys chosen by a bound of the scores that the row itself can give them: Quest
// (arXiv:2406.10774).
// Idea:       plan/page_bounds.h. One product of the group's summed query with all pages' extremes: work and memory
//             read do not depend on the size of the group. With a top share, the keys of the chosen pages are pruned by
//             the weights that the row gives them, as Twilight (arXiv:2502.02770) does.
// Invariants: the keys are those of this request: where it reads placed keys with another rotation, they are turned.
// Threads:    the engine thread; heads are looked at on the pool.
// Cost:       a head's 2 E floats a page: with pages of 16 keys, as much as an eighth of K and V in bf16. The first row
//             reads all keys once; then a row's own, and the pages' extremes. A top share costs one and a half times
//             the attention over the chosen pages.
#pragma once

#include "forward/key_chooser.h"
#include "plan/page_bounds.h"

namespace kvilt {

class PageChooser : public KeyChooser {
 public:
  PageChooser(const DecodeRule& rule, const ModelConfig& config) : rule_(rule), config_(config) {}

  std::vector<Runs> choose(const KeySource& from, LayerRow at, const float* q, std::span<const int> heads,
                           ChoiceCost& cost) override;

 private:
  PageBounds& bounds_of(int layer, int head);
  void extend(const KeySource& from, int layer, std::span<const KvSpan> spans, PageBounds& bounds) const;
  struct Asking {  // a row that chooses
    const KeySource& from;
    LayerRow at;
    const float* q;
  };
  void prune(const Asking& row, std::span<const int> heads, std::vector<Runs>& keys, ChoiceCost& cost) const;
  std::vector<double> scores_of(const KeySource& from, const float* q, const PageBounds& bounds) const;

  const DecodeRule rule_;
  const ModelConfig& config_;
  std::vector<PageBounds> bounds_;  // layer * G + head; none before the first choice
  std::vector<KvSpan> spans_;
};

}  // namespace kvilt
