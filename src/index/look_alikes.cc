#include "index/look_alikes.h"

#include <algorithm>
#include <array>
#include <vector>

namespace kvilt {

double look_alike_share(std::span<const int32_t> prompt, std::span<const Run> parts) {
  std::vector<std::array<int32_t, 4>> windows;
  for (const Run& part : parts) {
    for (int32_t pos = part.begin; pos + 3 < part.end; ++pos)
      windows.push_back({prompt[pos], prompt[pos + 1], prompt[pos + 2], prompt[pos + 3]});
  }
  if (windows.empty()) return 0;
  std::ranges::sort(windows);
  const auto same_three = [](const auto& a, const auto& b) { return std::equal(a.begin(), a.begin() + 3, b.begin()); };
  int64_t alike = 0;
  for (auto first = windows.begin(); first != windows.end();) {
    const auto end = std::find_if_not(first, windows.end(), [&](const auto& w) { return same_three(w, *first); });
    if ((*first)[3] != (*(end - 1))[3]) alike += end - first;
    first = end;
  }
  return static_cast<double>(alike) / static_cast<double>(windows.size());
}

}  // namespace kvilt
