// engine/memory.h: how much memory this process may still take, for the KV pool's size.
// Idea:     the least of what the machine has available and what each control group around us leaves (`docker run -m`,
//           Kubernetes). Caches of files that nothing needs count as available, the files that we have mapped (weights)
//           do not.
// Errors:   none; what cannot be read or understood sets no limit.
// Not here: swap.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvilt {

// Bytes; nothing where nobody says. root: of the file system.
std::optional<int64_t> available_memory(const std::string& root = "");

// Half of that, at most 4 GiB.
int64_t default_kv_bytes(std::optional<int64_t> available);
// A sentence if a pool of `asked` bytes is more than there is, else empty.
std::string pool_warning(int64_t asked, std::optional<int64_t> available);

// ---- The parts of available_memory(), which take the files' texts

// Bytes of files that this process has in memory. /proc/self/status.
int64_t mapped_bytes(std::string_view status);
// /proc/meminfo.
std::optional<int64_t> available_in_machine(std::string_view meminfo, int64_t mapped);

// A control group's files: memory.max, memory.current and memory.stat, or what version 1 calls them.
struct GroupTexts {
  std::string limit, usage, stat;
};
std::optional<int64_t> available_in_group(const GroupTexts& group, int64_t mapped);
// The folders of our group and of those around it, version 2 and 1. /proc/self/cgroup.
std::vector<std::string> group_folders(std::string_view cgroup);

}  // namespace kvilt
