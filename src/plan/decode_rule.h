// plan/decode_rule.h: which keys the rows of an answer see, where they do not see all: a rule as data, and the choice
// that it makes of scores, which is pure.
// Idea:       an answer looks at few of a long prompt's keys, and at much the same ones for a while. So each KV head
//             keeps a set of keys, chosen by how much the last rows looked at them: once, as SnapKV (arXiv:2404.14469),
//             or anew every n rows, as LoopServe (arXiv:2507.13681). The keys of the rows that follow a choice are seen
//             by all of them.
// Invariants: nothing is dropped: the next choice may take what the last one left out.
// Threads:    pure; any thread.
// Not here:   who looks (forward/selected_keys.h), the methods' parameters (policy/decode_methods.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/runs.h"

namespace kvilt {

struct DecodeRule {
  enum class By : uint8_t {
    kAttention,  // the sum of the attention weights of the last `queries` rows and the group's query heads
    kNearest,    // the nearest ones
    kRandom,     // drawn anew for each layer, head and choice: the control
  };
  By by = By::kAttention;
  int32_t budget = 1024;  // keys of a KV head, on average over a layer's heads
  int32_t sink = 0;       // of them: the first positions, always
  int32_t recent = 0;     // of them: the last positions before the choice, always
  int32_t queries = 32;
  int32_t dense_rows = 0;  // rows of the answer that see all before the first choice
  int32_t every = 0;       // rows from one choice to the next; 0: the first one stays
  int32_t pool = 1;        // a key's score is pooled over so many neighbours, itself in the middle; odd
  bool pool_max = false;   // by their maximum, not their mean
  // Of the budget without sink and recent, the share that each head has for itself; the layer's heads compete for the
  // rest by their scores (AdaKV, arXiv:2407.11550). 1: equal budgets.
  double own_share = 1;
  // > 1: budgets fall from layer to layer, from 2 B - B / pyramid to B / pyramid (PyramidKV, arXiv:2406.02069).
  double pyramid = 0;
  uint64_t seed = 1;

  // Whether the answer's row number n, from 0, chooses by the rule's schedule.
  bool chooses_at(int32_t n) const {
    return n == dense_rows || (every > 0 && n > dense_rows && (n - dense_rows) % every == 0);
  }
  int32_t budget_of(int layer, int num_layers) const;  // at least sink + recent
};

// The keys that each KV head of `layer` keeps of the positions [0, keys). scores: by head, of the keys; not read unless
// by is kAttention. The heads' sizes sum to heads * min(budget_of(layer), keys), and no head has more than `keys`.
// Ties: lower positions first, and lower heads.
std::vector<Runs> choose_keys(const DecodeRule& rule, int layer, int num_layers,
                              std::span<const std::vector<double>> scores, int32_t keys);

}  // namespace kvilt
