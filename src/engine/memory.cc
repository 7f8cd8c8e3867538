#include "engine/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <utility>

namespace kvilt {
namespace {

constexpr int64_t kDefaultKvBytes = int64_t{4} << 30;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Calls fn(line) for each line until it returns true.
template <class Fn>
void each_line(std::string_view text, const Fn& fn) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (fn(text.substr(0, end))) return;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::optional<int64_t> number_in(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  int64_t value = 0;
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
  return wrong == std::errc() && value >= 0 ? std::optional(value) : std::nullopt;
}

// The number in the line that begins with `key`.
std::optional<int64_t> number_of(std::string_view text, std::string_view key) {
  std::optional<int64_t> out;
  each_line(text, [&](std::string_view line) {
    if (!line.starts_with(key)) return false;
    out = number_in(line.substr(key.size()));
    return true;
  });
  return out;
}

std::optional<int64_t> kilobytes_of(std::string_view text, std::string_view key) {
  const auto number = number_of(text, key);
  return number && *number <= INT64_MAX / 1024 ? std::optional(*number * 1024) : std::nullopt;
}

}  // namespace

int64_t mapped_bytes(std::string_view status) { return kilobytes_of(status, "RssFile:").value_or(0); }

std::optional<int64_t> available_in_machine(std::string_view meminfo, int64_t mapped) {
  const auto available = kilobytes_of(meminfo, "MemAvailable:");
  return available ? std::optional(std::max<int64_t>(0, *available - mapped)) : std::nullopt;
}

std::optional<int64_t> available_in_group(const GroupTexts& group, int64_t mapped) {
  const auto limit = number_in(group.limit);  // version 2 says "max" where there is none, version 1 some 2^63
  if (!limit) return std::nullopt;
  const int64_t used = number_in(group.usage).value_or(0);
  auto inactive = number_of(group.stat, "total_inactive_file ");  // version 1: with the groups inside
  if (!inactive) inactive = number_of(group.stat, "inactive_file ");
  // The system drops these before it kills; the weights may be among them, and are needed.
  const int64_t droppable = std::clamp<int64_t>(inactive.value_or(0) - mapped, 0, used);
  return std::max<int64_t>(0, *limit - (used - droppable));
}

std::vector<std::string> group_folders(std::string_view cgroup) {
  std::vector<std::string> out;
  each_line(cgroup, [&](std::string_view line) {  // "0::/path", or "4:cpu,memory:/path" in version 1
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) return false;
    const std::string names = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const bool memory = names.find(",memory,") != std::string::npos;
    if (!memory && names != ",,") return false;
    const std::string root = memory ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
    std::string_view path = line.substr(second + 1);
    if (!path.starts_with('/')) return false;
    for (; path.size() > 1; path = path.substr(0, path.rfind('/'))) out.push_back(root + std::string(path));
    out.push_back(root);
    return false;
  });
  return out;
}

std::optional<int64_t> available_memory(const std::string& root) {
  const int64_t mapped = mapped_bytes(text_of(root + "/proc/self/status"));
  std::optional<int64_t> least = available_in_machine(text_of(root + "/proc/meminfo"), mapped);
  for (const std::string& folder : group_folders(text_of(root + "/proc/self/cgroup"))) {
    const std::string stem = root + folder + "/memory.";
    for (const auto& [limit, usage] : {std::pair("max", "current"), std::pair("limit_in_bytes", "usage_in_bytes")}) {
      const auto left =
          available_in_group({text_of(stem + limit), text_of(stem + usage), text_of(stem + "stat")}, mapped);
      if (left) least = std::min(least.value_or(INT64_MAX), *left);
    }
  }
  return least;
}

int64_t default_kv_bytes(std::optional<int64_t> available) {
  return std::min(kDefaultKvBytes, available.value_or(INT64_MAX) / 2);
}

std::string pool_warning(int64_t asked, std::optional<int64_t> available) {
  if (!available || asked <= *available) return "";
  return fmt::format(
      "a KV pool of {} MiB (--kv-bytes) is more than the {} MiB of memory that are available: the system may end this "
      "process when the pool fills",
      asked >> 20, *available >> 20);
}

}  // namespace kvilt
