// tier/disk_tier.h: a tier in a folder: one file for the bytes of each piece, one journal that says what there is.
// Idea:       bytes are written and synced first, then their record is appended to the journal: a crash between the two
//             leaves a file that nobody names, which the next start deletes. Nothing is ever written in place, so there
//             is nothing to repair, and a removed piece gives its room back at once. docs/design/disk.md says why this and
//             no database.
// Invariants: at most `limit` bytes, by removing what was used longest ago; what a piece continues is used with it, so it
//             goes later. One process at a time: the folder is locked. Files 0600, folders 0700.
// Errors:     open: kUnavailable (another process has it), kInvalidArgument (others may read it), kIo. What is damaged in
//             an open folder is left out and counted.
// Threads:    as Tier.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tier/journal.h"
#include "tier/tier.h"

namespace kvilt {

class DiskTier : public Tier {
 public:
  // files: must outlive it; tests give their own.
  static Result<std::unique_ptr<DiskTier>> open(const std::string& folder, int64_t limit, Files& files);
  static Result<std::unique_ptr<DiskTier>> open(const std::string& folder, int64_t limit);
  ~DiskTier() override;

  // The secret that keys every digest in the folder: drawn when the folder was made.
  const HashSecret& secret() const { return secret_; }
  int64_t damaged() const { return damaged_; }  // records that open() had to leave out
  // All that it holds, of whatever maker, by id.
  Result<std::vector<StoredPiece>> all();

  Result<std::vector<StoredPiece>> known(const Digest& maker) override;
  uint64_t new_id() override { return ++last_id_; }
  Status put(const StoredPiece& piece, std::span<const std::byte> values, std::vector<uint64_t>& removed) override;
  Result<std::vector<std::byte>> get(uint64_t id, int32_t chunk) override;
  void touch(uint64_t id) override;
  void remove(uint64_t id) override;
  Status clear() override;
  Status flush() override;
  int64_t bytes() const override { return bytes_; }
  int64_t pieces() const override { return static_cast<int64_t>(entries_.size()); }

 private:
  enum class Kind : uint8_t { kPut = 1, kRemove = 2, kUsed = 3 };
  struct Entry {
    Digest maker{};
    uint64_t parent = 0;
    int32_t tokens = 0;
    uint32_t token_bytes = 0;
    std::vector<uint64_t> checksums;
    PieceJournal::Place place;
    std::list<uint64_t>::iterator used;  // in order_
    int64_t values() const { return int64_t{tokens} * token_bytes; }
    int64_t bytes() const { return values() + PieceJournal::bytes_of(place.size); }
  };
  DiskTier(std::string folder, int64_t limit, Files& files)
      : folder_(std::move(folder)), limit_(limit), files_(files), journal_(files) {}
  Status lock();
  Status read_secret();
  Status replay();
  void take(std::span<const std::byte> record, PieceJournal::Place place);
  void sweep();
  void enter(uint64_t id, Entry entry);
  void forget(uint64_t id);
  bool drop_oldest(uint64_t but, std::vector<uint64_t>& removed);
  Status store(const StoredPiece& piece, std::span<const std::byte> values);
  void note(Kind kind, uint64_t id);
  void use(uint64_t id);
  void tidy_journal();
  Status rewrite_journal();
  std::string path_of(uint64_t id) const;

  const std::string folder_;
  const int64_t limit_;
  Files& files_;
  int lock_ = -1;
  HashSecret secret_ = HashSecret::fixed(0);
  PieceJournal journal_;
  std::unordered_map<uint64_t, Entry> entries_;
  std::list<uint64_t> order_;  // used longest ago first
  int64_t bytes_ = 0, damaged_ = 0;
  int64_t live_ = 0;  // bytes of the journal that records of entries_ take
  std::atomic<uint64_t> last_id_{0};
};

}  // namespace kvilt
