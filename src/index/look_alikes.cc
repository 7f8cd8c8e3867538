#include "index/look_alikes.h"

#include <algorithm>
#include <array>

namespace kvilt {
namespace {

struct Window {
  std::array<int32_t, 4> tokens;  // three, and what they go on with
  size_t part;
};

bool same_three(const Window& a, const Window& b) {
  return std::equal(a.tokens.begin(), a.tokens.begin() + 3, b.tokens.begin());
}

// Adds to each part how many of its windows have a last token that others with the same first three do not have. Sorts
// and empties them.
void count_alike(std::vector<Window>& windows, std::vector<int64_t>& alike) {
  std::ranges::sort(windows, {}, &Window::tokens);
  for (auto first = windows.begin(); first != windows.end();) {
    const auto end = std::find_if_not(first, windows.end(), [&](const Window& w) { return same_three(w, *first); });
    const bool differ = first->tokens[3] != (end - 1)->tokens[3];
    for (; first != end; ++first) alike[first->part] += differ;
  }
  windows.clear();
}

double share_of(int64_t alike, int64_t all) {
  return all > 0 ? static_cast<double>(alike) / static_cast<double>(all) : 0;
}

}  // namespace

LookAlikes look_alikes(std::span<const int32_t> prompt, std::span<const Run> parts) {
  std::vector<Window> windows;
  std::vector<int64_t> alike(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    for (int32_t pos = parts[i].begin; pos + 3 < parts[i].end; ++pos) {
      windows.push_back({{prompt[pos], prompt[pos + 1], prompt[pos + 2], prompt[pos + 3]}, i});
      if (std::ssize(windows) == kLookAlikeStretch) count_alike(windows, alike);
    }
  }
  count_alike(windows, alike);
  LookAlikes out;
  int64_t all = 0, of_all = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t n = std::max(parts[i].size() - 3, 0);
    out.parts.push_back(share_of(alike[i], n));
    all += n;
    of_all += alike[i];
  }
  out.all = share_of(of_all, all);
  return out;
}

}  // namespace kvilt
