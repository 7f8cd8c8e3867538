#include "tier/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/mapped_file.h"

namespace kvilt {
namespace {

constexpr uint32_t kMagic = 0x314a564b;  // "KVJ1"
constexpr int64_t kSummedInVain = int64_t{64} << 20;

struct Head {
  uint32_t magic, size;
  uint64_t sum;
};
static_assert(sizeof(Head) == 16);

}  // namespace

PieceJournal::~PieceJournal() {
  if (fd_ >= 0) ::close(fd_);
}

std::vector<std::byte> PieceJournal::framed(std::span<const std::byte> payload) {
  std::vector<std::byte> out(static_cast<size_t>(bytes_of(std::ssize(payload))));
  const Head head{kMagic, static_cast<uint32_t>(payload.size()), checksum(payload)};
  std::memcpy(out.data(), &head, sizeof head);
  if (!payload.empty()) std::memcpy(out.data() + kHead, payload.data(), payload.size());
  return out;
}

Result<PieceJournal::Opened> PieceJournal::open(const std::string& path,
                                                FunctionRef<void(std::span<const std::byte>, Place)> take) {
  path_ = path;
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd_ < 0) return system_error(path);
  const int64_t size = ::lseek(fd_, 0, SEEK_END);
  if (size < 0) return system_error(path);
  Opened out;
  if (size == 0) return out;
  KVILT_ASSIGN(const MappedFile file, MappedFile::open(path));
  const std::span<const std::byte> bytes = file.bytes();
  bool good = true;
  // Bytes that may be summed in vain: a file of nothing but heads would cost its square.
  int64_t left_to_sum = std::ssize(bytes) + kSummedInVain;
  for (int64_t at = 0; at < std::ssize(bytes) && left_to_sum >= 0;) {
    Head head{};
    const int64_t left = std::ssize(bytes) - at;
    if (left >= kHead) std::memcpy(&head, bytes.data() + at, sizeof head);
    const bool fits = head.magic == kMagic && head.size <= left - kHead;
    const auto payload = fits ? bytes.subspan(static_cast<size_t>(at + kHead), head.size) : bytes.first(0);
    if (fits && checksum(payload) == head.sum) {
      take(payload, {at + kHead, head.size});
      at += bytes_of(head.size);
      end_ = at;
      good = true;
      continue;
    }
    out.damaged += std::exchange(good, false) ? 1 : 0;
    left_to_sum -= fits ? head.size : 0;
    at += 8;
  }
  return out;
}

// A record that is only in part on the disk is written over by the next one.
Result<PieceJournal::Place> PieceJournal::append(std::span<const std::byte> payload) {
  const std::vector<std::byte> record = framed(payload);
  if (const Status written = files_.write_at(fd_, end_, record); !written.ok()) {
    [[maybe_unused]] const int cut = ::ftruncate(fd_, end_);
    return error(written.error().code, "{}: {}", path_, written.error().message);
  }
  const Place place{end_ + kHead, static_cast<uint32_t>(payload.size())};
  end_ += std::ssize(record);
  return place;
}

Status PieceJournal::sync() { return files_.sync(fd_); }

Result<std::vector<std::byte>> PieceJournal::read(Place place) {
  std::vector<std::byte> out(place.size);
  KVILT_TRY(files_.read(path_, place.offset, out));
  return out;
}

Status PieceJournal::rewrite(std::span<Place*> places) {
  std::vector<std::byte> all;
  std::vector<Place> moved;
  for (const Place* place : places) {
    KVILT_ASSIGN(const std::vector<std::byte> payload, read(*place));
    const std::vector<std::byte> record = framed(payload);
    moved.push_back({std::ssize(all) + kHead, place->size});
    all.insert(all.end(), record.begin(), record.end());
  }
  const std::string next = path_ + ".next";
  KVILT_TRY(files_.write(next, all));
  const int fd = ::open(next.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return system_error(next);
  if (::rename(next.c_str(), path_.c_str()) != 0) {
    const Error failed = system_error(path_);
    ::close(fd);
    ::unlink(next.c_str());
    return failed;
  }
  ::close(std::exchange(fd_, fd));
  end_ = std::ssize(all);
  for (size_t i = 0; i < places.size(); ++i) *places[i] = moved[i];
  return files_.sync_folder_of(path_);  // or a power cut would bring back the old file, without what follows
}

}  // namespace kvilt
