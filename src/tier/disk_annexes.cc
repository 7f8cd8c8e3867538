// tier/disk_annexes.cc: DiskTier: what is kept beside a piece's values (annex_record.h).
// Idea:  a file of its own, beside the piece's: no record names it, so it can come at any time and go alone. A start finds
//        it by its name. It is written under another name first, so that it is there whole or not at all.
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "tier/annex_record.h"
#include "tier/disk_tier.h"

namespace kvilt {

// Of a piece that a start found. False: it is not that file, or none of use.
bool DiskTier::find_annexes(uint64_t id, const std::string& path) {
  if (path != annexes_path(id)) return false;
  Entry& entry = entries_.at(id);
  std::error_code failed;
  const bool plain = std::filesystem::symlink_status(path, failed).type() == std::filesystem::file_type::regular;
  const auto size = plain ? static_cast<int64_t>(std::filesystem::file_size(path, failed)) : 0;
  if (failed || size <= 0 || size > entry.file_bytes()) return false;
  entry.annex_bytes = size;
  shares_.grow(entry.held, size);
  return true;
}

// removed: null: nothing may go for it.
Status DiskTier::store_annexes(uint64_t id, std::span<const std::byte> annexes, std::vector<uint64_t>* removed) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return error(Code::kNotFound, "piece {:x} was removed", id);
  Entry& entry = it->second;
  const std::vector<std::byte> file = bound_annexes(id, annexes, sealer_ ? &*sealer_ : nullptr);
  const int64_t size = std::ssize(file), more = size - entry.annex_bytes;
  if (size > entry.file_bytes())
    return error(Code::kTooLong, "the annexes of piece {:x} take {} bytes, more than its values", id, size);
  if (removed) use(id, By::kWriter);
  const bool fits = more <= 0 || (removed ? make_room(entry.held.owner, more, id, *removed)
                                          : shares_.has_room(entry.held.owner, more));
  if (!fits) return error(Code::kExhausted, "{}: no room is left for the annexes of piece {:x}", folder_, id);
  KVILT_TRY(files_.replace(annexes_path(id), file));
  shares_.grow(entry.held, more);
  entry.annex_bytes = size;
  return {};
}

Status DiskTier::put_annexes(uint64_t id, std::span<const std::byte> annexes, std::vector<uint64_t>& removed) {
  return store_annexes(id, annexes, &removed);
}

Status DiskTier::add_annexes(uint64_t id, std::span<const std::byte> annexes) {
  return store_annexes(id, annexes, nullptr);
}

Status DiskTier::get_annexes(uint64_t id, std::vector<std::byte>& out) {
  const auto it = entries_.find(id);
  if (it == entries_.end() || it->second.annex_bytes == 0) return error(Code::kNotFound, "piece {:x} has none", id);
  std::vector<std::byte> file(static_cast<size_t>(it->second.annex_bytes));
  Status read = files_.read(annexes_path(id), 0, file);
  if (read.ok()) {
    if (auto annexes = annexes_of(id, file, sealer_ ? &*sealer_ : nullptr)) {
      out = *std::move(annexes);
      return {};
    }
    read = error(Code::kCorrupt, "{}: it is damaged", annexes_path(id));
  }
  if (read.error().code == Code::kCorrupt || read.error().code == Code::kNotFound) remove_annexes(id);
  return read;
}

void DiskTier::remove_annexes(uint64_t id) {
  Entry& entry = entries_.at(id);
  if (entry.annex_bytes == 0) return;
  shares_.grow(entry.held, -std::exchange(entry.annex_bytes, 0));
  (void)files_.remove(annexes_path(id));
}

}  // namespace kvilt
