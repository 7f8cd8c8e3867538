#include "index/look_alikes.h"

#include <algorithm>
#include <array>

namespace kvilt {

namespace {

using Window = std::array<int32_t, 4>;

// How many of the windows have a last token that others with the same first three do not have. Sorts them.
int64_t count_alike(std::vector<Window>& windows) {
  std::ranges::sort(windows);
  int64_t alike = 0;
  for (auto first = windows.begin(); first != windows.end();) {
    const auto end = std::find_if_not(
        first, windows.end(), [&](const Window& w) { return std::equal(w.begin(), w.begin() + 3, first->begin()); });
    if ((*first)[3] != (*(end - 1))[3]) alike += end - first;
    first = end;
  }
  return alike;
}

}  // namespace

double look_alike_share(std::span<const int32_t> prompt, std::span<const Run> parts) {
  std::vector<Window> windows;
  int64_t alike = 0, all = 0;
  const auto count = [&] {
    all += std::ssize(windows);
    alike += count_alike(windows);
    windows.clear();
  };
  for (const Run& part : parts) {
    for (int32_t pos = part.begin; pos + 3 < part.end; ++pos) {
      windows.push_back({prompt[pos], prompt[pos + 1], prompt[pos + 2], prompt[pos + 3]});
      if (std::ssize(windows) == kLookAlikeStretch) count();
    }
  }
  count();
  return all > 0 ? static_cast<double>(alike) / static_cast<double>(all) : 0;
}

std::vector<double> look_alike_shares(std::span<const int32_t> prompt, std::span<const Run> parts) {
  std::vector<double> out;
  for (const Run& part : parts) out.push_back(look_alike_share(prompt, {&part, 1}));
  return out;
}

}  // namespace kvilt
