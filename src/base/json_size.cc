#include "base/json_size.h"

#include <fmt/format.h>

#include <cstdint>
#include <vector>

namespace kvilt {

std::optional<std::string> oversized_json(std::string_view text, const JsonLimits& limits, std::string_view what) {
  std::vector<size_t> members;  // commas seen at each open level
  size_t values = 1, look_ups = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"':
        for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
        break;
      case '{':
      case '[':
        if (members.size() >= static_cast<size_t>(limits.depth)) {
          return fmt::format("{} is nested deeper than {} levels", what, limits.depth);
        }
        // An array counts from SIZE_MAX / 2, which tells it from an object: its length is not bounded.
        members.push_back(text[i] == '{' ? 1 : SIZE_MAX / 2);
        ++values;
        break;
      case '}':
      case ']':
        if (!members.empty()) members.pop_back();
        break;
      case ',':
        ++values;
        if (!members.empty() && ++members.back() > limits.members && members.back() < SIZE_MAX / 2) {
          return fmt::format("an object of {} has more than {} members", what, limits.members);
        }
        // Each member of an ordered object is compared with the earlier ones.
        if (!members.empty() && members.back() < SIZE_MAX / 2) look_ups += members.back();
        if (look_ups > limits.look_ups) {
          return fmt::format("{} has too many objects with many members", what);
        }
        break;
      default:
        break;
    }
    if (values > limits.values) {
      return fmt::format("{} has more than {} values", what, limits.values);
    }
  }
  return std::nullopt;
}

}  // namespace kvilt
