// base/token_spread.h: how far the contexts of a mean lie apart at one of its tokens (docs/math/seasoning.md, equation 8).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kvilt {

// The mean squared distance of the contexts from their mean, of the token's K (before rotation) and of its V, summed
// over layers, heads and elements.
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
  const bool is_known = before.size() == apart.size();
  std::vector<TokenSpread> out;
  for (size_t i = 0; i < apart.size(); ++i) {
    const TokenSpread was = is_known ? before[i] : TokenSpread{0, 0};
    out.push_back({(was.k + apart[i].k / (n + 1)) * n / (n + 1), (was.v + apart[i].v / (n + 1)) * n / (n + 1)});
  }
  return out;
}

}  // namespace kvilt
