#include "forward/prompt_scores.h"

#include <cmath>
#include <limits>

#include "base/check.h"
#include "forward/sampler.h"

namespace kvilt {

PromptScores::PromptScores(std::span<const int32_t> prompt, int top) : top_(top), tokens_(prompt.size()) {
  for (size_t i = 0; i < prompt.size(); ++i) tokens_[i].id = prompt[i];
}

void PromptScores::take(int32_t pos, std::span<const float> logits) {
  CHECK(takes(pos));
  TokenLogprob& token = tokens_[static_cast<size_t>(pos) + 1];
  if (Sampler::can_sample(logits)) {
    token = Sampler::logprob(logits, token.id, top_);
  } else {
    token.logprob = std::numeric_limits<float>::quiet_NaN();
  }
}

std::optional<int32_t> PromptScores::unsound() const {
  for (size_t i = 1; i < tokens_.size(); ++i) {
    if (std::isnan(tokens_[i].logprob)) return static_cast<int32_t>(i) - 1;
  }
  return std::nullopt;
}

int64_t PromptScores::bytes(int64_t tokens, int top) {
  const size_t each = sizeof(TokenLogprob) + static_cast<size_t>(top) * sizeof(TokenLogprob().top[0]);
  return tokens * static_cast<int64_t>(each);
}

}  // namespace kvilt
