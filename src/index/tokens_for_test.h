// index/tokens_for_test.h: token texts that differ by who wrote them, for tests of finding and publishing.
#pragma once

#include <cstdint>
#include <vector>

namespace kvilt {

using Tokens = std::vector<int32_t>;

// n tokens that no other `who` has.
inline Tokens text(int32_t who, int32_t n) {
  Tokens out;
  for (int32_t i = 0; i < n; ++i) out.push_back(who * 1000 + i);
  return out;
}

template <class... More>
Tokens join(Tokens first, const More&... more) {
  (first.insert(first.end(), more.begin(), more.end()), ...);
  return first;
}

}  // namespace kvilt
