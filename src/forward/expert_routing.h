// forward/expert_routing.h: which rows of a batch go to which experts of a mixture-of-experts layer, with what weight.
// Source:     Mixtral (arXiv:2401.04088) and Qwen3's MoE layers: softmax over the router's logits, the top_k
//             probabilities, made to sum to one if the model says so.
// Invariants: a row's experts and weights come from its own logits only (row-invariant); of equal logits the expert
//             with the lower number wins; rows of an expert rise.
// Threads:    the engine thread.
// Cost:       O(rows * (experts + top_k^2)), no allocation once the largest batch was seen.
// Not here:   the router's and the experts' matmuls (driver.cc).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "forward/batch_rows.h"
#include "tensor/view.h"

namespace kvilt {

struct RoutedRow {
  int64_t row;
  float weight;
};

class ExpertRouting {
 public:
  // logits: T x experts. REQUIRES: 1 <= top_k <= experts.
  void route(Mat<const float> logits, int top_k, bool renormalise);
  // The rows that chose this expert.
  std::span<const RoutedRow> rows_of(int expert) const {
    return std::span(routed_).subspan(first_[expert], first_[expert + 1] - first_[expert]);
  }

 private:
  struct Choice {
    int expert;
    float weight;
  };
  std::vector<Choice> choices_;    // top_k of each row
  std::vector<int64_t> first_;     // expert e's rows are routed_[first_[e]] ..
  std::vector<RoutedRow> routed_;  // by expert, then by row
};

// The rows of `from` that routed names, chunk by chunk, into out.
const BatchRows& select_routed(const BatchRows& from, std::span<const RoutedRow> routed, BatchRows& out);

}  // namespace kvilt
