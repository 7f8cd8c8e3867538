// base/token_spread.h: how far the contexts of a mean lie apart at one of its tokens (docs/math/seasoning.md, equation 8).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kvilt {

// The variance over the contexts of the token's K (before rotation) and of its V, summed over layers, heads and elements.
struct TokenSpread {
  float k = -1, v = -1;
  bool known() const { return k >= 0; }
  friend bool operator==(const TokenSpread&, const TokenSpread&) = default;
};

// Of a mean that gets one context more. before: of its `contexts` >= 1 contexts; of one there is none. apart: by token,
// the squared distances of the new one's K and V from the mean of those.
inline std::vector<TokenSpread> spread_with(std::span<const TokenSpread> before, std::span<const TokenSpread> apart,
                                            int contexts) {
  const auto n = static_cast<float>(contexts);
  std::vector<TokenSpread> out(apart.begin(), apart.end());
  for (TokenSpread& token : out) token = {token.k * n / (n + 1), token.v * n / (n + 1)};
  if (contexts < 2 || before.size() != out.size()) return out;
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = {((n - 1) * before[i].k + out[i].k) / n, ((n - 1) * before[i].v + out[i].v) / n};
  return out;
}

}  // namespace kvilt
