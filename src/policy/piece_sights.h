// policy/piece_sights.h: recomputed tokens that do not read what is stale of other pieces.
// Source:  RelaxKV (arXiv:2609.33503), docs/papers.md#relaxkv.
// Idea:    a token's stale neighbours were computed without its context: what a recomputed row takes from them is wrong in
//          the way that it is recomputed for. It reads what is computed anew, and of its own piece perhaps all.
// Threads: pure; any thread.
#pragma once

#include "policy/policy.h"

namespace kvilt {

enum class RowsRead : uint8_t {
  kOwnPiece,    // the prefix, all that is computed, and their own piece
  kRecomputed,  // the prefix and all that is computed
};

// For the rows `chosen`, all of them reused. computed: all positions that the stage computes, these among them.
std::vector<Sight> piece_sights(const PromptLayout& layout, const Runs& chosen, const Runs& computed, RowsRead read);

}  // namespace kvilt
