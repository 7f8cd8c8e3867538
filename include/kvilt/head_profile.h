// kvilt/head_profile.h: what each KV head of a model looks at in one prompt, to make a head map of
// (docs/design/heads.md#profiling).
// Source: RedKnot (arXiv:2606.06256); the ablation is ours, and the measure that makes good maps.
// Units:  nats; shares of attention; tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kvilt/result.h"

namespace kvilt {

class Engine;

struct HeadProfileOptions {
  int window = 64, sink = 4;  // a local head's: keys i - j <= window and j < sink
  int rows = 40;              // the prompt's last rows, on which distances are taken
  bool ablation = true;       // without it one forward is enough
  // Tokens to put before the prompt: how much does each head's attention among the prompt's own tokens change after
  // them? One forward each, in lock-step.
  std::vector<std::vector<int32_t>> prefixes;
  int prefix_at = 0;  // where in the prompt they are put: 1 where a first token begins every text
  std::function<void(double share)> progress;  // called on the engine thread
};

// All lists: per layer * kv_heads + KV head.
struct HeadProfile {
  int layers = 0, kv_heads = 0, tokens = 0;
  // KL(full || only this head is local), mean over the last rows. Empty if it was not asked for.
  std::vector<double> ablation;
  // Attention outside sink and window, mean over rows (the last ones, and others spread over the prompt): the highest
  // of the group's query heads, and their mean.
  std::vector<double> edge_max, edge_mean;
  // 1 - cosine of the attention weights among the prompt's own tokens with and without a prefix, mean over prefixes:
  // the highest of the group's query heads, and their mean. Empty without prefixes.
  std::vector<double> shift_max, shift_mean;
  // The windows tried, and for each the share of attention inside sink and window, mean over the group.
  std::vector<int> windows;
  std::vector<std::vector<double>> inside;  // per window
};

// Takes seconds to minutes, in which the engine computes nothing else. Errors: kInvalidArgument; kExhausted where the
// KV pool has no room for the prompt; kUnsupported if `engine` is not one of open_engine's.
Result<HeadProfile> profile_heads(Engine& engine, const std::vector<int32_t>& prompt,
                                  const HeadProfileOptions& options);

}  // namespace kvilt
