// plan/decode_rule.h: which keys the rows of an answer see, where they do not see all: a rule as data, and the choice
// that it makes of scores, which is pure.
// Idea:       an answer looks at few of a long prompt's keys, and at much the same ones for a while. So each KV head
//             keeps a set of keys, chosen by how much the last rows looked at them: once, as SnapKV (arXiv:2404.14469),
//             or anew every n rows, as LoopServe (arXiv:2507.13681), or at every row, as Quest (arXiv:2406.10774). The
//             keys of the rows that follow a choice are seen by all of them.
// Invariants: the next choice may take what the last one left out, but for kAllRows. So nothing is dropped, unless the
//             rule evicts.
// Threads:    pure; any thread.
// Not here:   who looks (forward/key_chooser.h), the methods' parameters (policy/decode_methods.h).
#pragma once

#include <algorithm>
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
    kPages,      // whole pages, by a bound of the scores that the choosing row itself can give their keys
    kLayer,      // the weights that the choosing row itself gave in a selection layer below, where it saw all
    kAllRows,    // the sum of the weights of all rows so far; what one choice leaves out no later one takes
  };
  By by = By::kAttention;
  int32_t budget = 1024;  // keys of a KV head, on average over a layer's heads
  int32_t sink = 0;       // of them: the first positions, always
  int32_t recent = 0;     // of them: the last positions before the choice, always
  int32_t queries = 32;
  int32_t dense_rows = 0;  // rows of the answer that see all before the first choice
  int32_t every = 0;       // rows from one choice to the next; 0: the first one stays
  int32_t pool = 1;        // a key's score is pooled over so many neighbours, itself in the middle; odd
  bool pool_max = false;   // by their maximum, not their mean. The keys that always stay are no neighbours of others
  int dense_layers = 0;    // the first layers see all
  int32_t page = 16;       // kPages: positions of a page
  int select = -1;         // kLayer: the second selection layer, above the first, which is dense_layers; -1: L / 2
  // Of the budget without sink and recent, the share that each head has for itself; the layer's heads compete for the
  // rest by their scores (AdaKV, arXiv:2407.11550). 1: equal budgets.
  double own_share = 1;
  // > 1: with B the budget without sink and recent, B falls from layer to layer, from 2 B - B / pyramid to B / pyramid
  // (PyramidKV, arXiv:2406.02069). Where the first layer would have more than there is, the last ones get what is left
  // over. Among fewer than 2 B keys all layers have the same.
  double pyramid = 0;
  // < 1: a head takes the fewest keys, heaviest first and sink and recent among them, that hold this share of its
  // scores; the budget is the most that it takes (Twilight, arXiv:2502.02770).
  double top_p = 1;
  // What a choice leaves out is let go of, and its memory is given back. REQUIRES: !takes_back().
  bool evict = false;
  // A row and the keys that it sees stand where they would if the others had never been: at their ranks among these
  // (StreamingLLM, arXiv:2309.17453). Else each stands where it does in the text.
  bool at_ranks = false;
  uint64_t seed = 1;

  // Whether the answer's row number n, from 0, chooses by the rule's schedule.
  bool chooses_at(int32_t n) const {
    return n == dense_rows || (every > 0 && n > dense_rows && (n - dense_rows) % every == 0);
  }
  // Whether a choice may take what one before it left out.
  bool takes_back() const {
    const bool may_choose_once = by == By::kAttention || by == By::kRandom;
    return may_choose_once ? every > 0 : by != By::kNearest && by != By::kAllRows;
  }
  int32_t budget_of(int layer, int num_layers, int32_t keys) const;  // at least sink + recent
  // Whether a choice at this layer among so many keys takes all of them, whatever their scores.
  bool takes_all(int layer, int num_layers, int32_t keys) const {
    return keys <= sink + recent || (top_p >= 1 && keys <= budget_of(layer, num_layers, keys));
  }
  // kLayer: the selection layer whose choice `layer` sees; it is one itself if this is `layer`.
  int selection_below(int layer, int num_layers) const {
    const int second = select < 0 ? num_layers / 2 : select;
    return second > dense_layers && layer >= second ? second : dense_layers;
  }
  // By which of the answer's rows row n chooses that is to choose: by itself. One that makes the only choice late, since
  // its request was preempted and computes the answer so far again, makes the one that was made. Not so where that took
  // the row's own query (kPages, kLayer) or where sums have grown since (kAllRows).
  int32_t chooses_as(int32_t n) const {
    const bool again = every == 0 && (by == By::kAttention || by == By::kNearest || by == By::kRandom);
    return again ? std::min(n, dense_rows) : n;
  }
  // Positions of a prefill whose rows a choice looks with, wherever their K and V come from. prompt_len, prefill_len: as
  // make_key_chooser() takes them (forward/key_chooser.h).
  Runs looking(int32_t prompt_len, int32_t prefill_len) const;
};

// The keys that each KV head of `layer` keeps of the positions [0, keys). scores: by head, of the keys; not read where
// by is kNearest or kRandom. kAllRows: of the keys that are in, of which the ranks are returned (plan/heavy_keys.h).
// lost: by head, the scores that those had that are out, which count as well; empty: none. The heads' sizes sum to
// heads * min(budget_of(layer, keys), keys), or less with top_p or where fewer are in; no head has more than it has scores.
// Ties: lower positions first, and lower heads.
std::vector<Runs> choose_keys(const DecodeRule& rule, int layer, int num_layers,
                              std::span<const std::vector<double>> scores, int32_t keys,
                              std::span<const double> lost = {});

// The same for kPages. scores: by head, of the pages of [0, keys). The page of the newest position is always kept; no
// head has more keys than the budget. REQUIRES: the budget is a page or more, or all keys.
std::vector<Runs> choose_pages(const DecodeRule& rule, int layer, int num_layers,
                               std::span<const std::vector<double>> scores, int32_t keys);

// Of the candidates the fewest, heaviest first, that hold this share of all their weights: what Twilight leaves of
// another method's choice. weights: of the candidates, by position. All of them where no weight is known.
Runs heaviest(const Runs& candidates, std::span<const double> weights, double share);

}  // namespace kvilt
