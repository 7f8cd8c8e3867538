// kvilt/head_profile.h: what each KV head of a model looks at on one prompt; plain data of the public interface.
// Source: RedKnot (arXiv:2606.06256), METHODS 2.3, FINDINGS' third study: the ablation is the measure that makes good maps.
// Units:  nats; shares of attention; tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace kvilt {

struct HeadProfileOptions {
  int window = 64, sink = 4;  // a local head's: keys i - j <= window and j < sink
  int rows = 40;              // the prompt's last rows, on which distances are taken
  bool ablation = true;       // without it one forward is enough
  // Tokens to stand before the prompt: how much each head's attention among the prompt's own tokens changes behind them. One
  // forward each, in lock-step.
  std::vector<std::vector<int32_t>> prefixes;
  int prefix_at = 0;  // where in the prompt they are put: 1 where a first token begins every text
  std::function<void(double share)> progress;  // called on the engine thread
};

// All lists: per layer * kv_heads + KV head.
struct HeadProfile {
  int layers = 0, kv_heads = 0, tokens = 0;
  // KL(full || only this head is local), mean over the last rows. Empty if it was not asked for.
  std::vector<double> ablation;
  // Attention outside sink and window, mean over rows (the last ones, and others spread over the prompt): of the group's query
  // heads the highest, and the mean.
  std::vector<double> edge_max, edge_mean;
  // 1 - cosine of the attention weights among the prompt's own tokens, with and without a prefix: the mean over prefixes, of the
  // group's query heads the highest, and the mean. Empty without prefixes.
  std::vector<double> shift_max, shift_mean;
  // Of the windows tried, the share of attention inside sink and window, mean over the group.
  std::vector<int> windows;
  std::vector<std::vector<double>> inside;  // per window
};

}  // namespace kvilt
