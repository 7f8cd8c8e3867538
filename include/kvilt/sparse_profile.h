// kvilt/sparse_profile.h: how much of its attention each KV head of a model holds in one prompt under patterns of few
// keys, and what they cost, to make a sparse map of (docs/design/sparse.md#a-pattern-for-each-head).
// Source: MInference (arXiv:2407.02490).
// Units:  shares of attention; shares of dense attention's FLOPs; tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kvilt/result.h"

namespace kvilt {

class Engine;

// Which keys the rows of a KV head see.
struct HeadPattern {
  enum class Is : uint8_t {
    kAShape,  // the first `sink` keys, and those i - j <= window
    kLines,   // the heaviest columns and distances (vertical-slash)
    kBlocks,  // the heaviest blocks of 64 keys, for each 64 rows
  };
  Is is = Is::kLines;
  int32_t sink = 128, window = 3968;
  int32_t columns = 1000, distances = 6096;
  int32_t blocks = 100;
  friend bool operator==(const HeadPattern&, const HeadPattern&) = default;
};

struct SparseProfileOptions {
  std::vector<HeadPattern> patterns;           // to try in each head
  std::function<void(double share)> progress;  // called on the engine thread
};

// held, cost: lists of (layer * kv_heads + KV head) * patterns + pattern.
struct SparseProfile {
  int layers = 0, kv_heads = 0, tokens = 0;
  std::vector<HeadPattern> patterns;
  // The share of a row's attention that is on the keys which the pattern shows it: mean over rows and query heads.
  std::vector<double> held;
  std::vector<double> cost;  // of it and of the choice, beside dense attention of the same rows
  // By layer * kv_heads + KV head: the rows that were tried, 1 in the last layer; 0 in those that a window narrows.
  std::vector<double> rows;
};

// Takes seconds to minutes, in which the engine computes nothing else. Errors: kInvalidArgument; kExhausted where the
// KV pool has no room for the prompt; kUnsupported if `engine` is not one of open_engine's.
Result<SparseProfile> profile_patterns(Engine& engine, const std::vector<int32_t>& prompt,
                                       const SparseProfileOptions& options);

}  // namespace kvilt
