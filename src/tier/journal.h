// tier/journal.h: an append-only file of records, each with its length and checksum.
// Idea:       what was appended last may be torn by a crash, and any byte may flip on a disk: a reader takes every record
//             whose checksum is right and goes on behind one whose is not, at the next place where one can begin.
//             It gives up where damage would cost more than the file twice over: what is behind is left out.
// Invariants: what append() said is written is read again, or left out; never changed. A failed append() leaves the
//             records before it as they were.
// Threads:    one.
// Not here:   what records mean (disk_tier.h). docs/formats/cache_folder.md has the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "tier/files.h"

namespace kvilt {

class PieceJournal {
 public:
  // Where a record's payload is in the file.
  struct Place {
    int64_t offset = 0;
    uint32_t size = 0;
  };
  struct Opened {
    int64_t damaged = 0;  // stretches that hold no record
  };

  explicit PieceJournal(Files& files) : files_(files) {}
  ~PieceJournal();
  PieceJournal(const PieceJournal&) = delete;
  PieceJournal& operator=(const PieceJournal&) = delete;

  // Opens the file, or makes it, and gives each record to `take`, oldest first. Errors: kIo.
  Result<Opened> open(const std::string& path, FunctionRef<void(std::span<const std::byte>, Place)> take);

  // It is there for a process that is killed, and after sync() for a power cut.
  Result<Place> append(std::span<const std::byte> payload);
  Status sync();
  // REQUIRES: a place that open() or append() named, since the last rewrite().
  Result<std::vector<std::byte>> read(Place place);

  // A new file of these records takes the file's place, all at once; `places` become where they are now.
  Status rewrite(std::span<Place*> places);

  int64_t bytes() const { return end_; }
  static int64_t bytes_of(int64_t payload) { return (kHead + payload + 7) / 8 * 8; }

 private:
  static constexpr int64_t kHead = 16;  // u32 magic, u32 payload's size, u64 checksum of it
  static std::vector<std::byte> framed(std::span<const std::byte> payload);
  Files& files_;
  std::string path_;
  int fd_ = -1;
  int64_t end_ = 0;
};

}  // namespace kvilt
