// tier/disk_tier.h: a tier in a folder: one file for the bytes of each piece, one journal that says what there is; beside
// a piece's file one for its annexes, if it has any.
// Idea:       bytes are written and synced first, then their record is appended to the journal: a crash between the two
//             leaves a file that nobody names, which the next start deletes. Nothing is ever written in place, so there
//             is nothing to repair, and a removed piece gives its room back at once. docs/design/disk.md says why this and
//             no database.
// Invariants: at most `limit` bytes, by removing the next of whoever is furthest beyond its share (disk_shares.h); what a
//             piece continues is used with it, so it goes later. One process at a time: the folder is locked. Files 0600,
//             folders 0700. With a key every record and chunk is sealed (base/sealer.h), and nothing that is not what was
//             written is returned, whoever wrote it.
// Errors:     open: kUnavailable (another process has it), kInvalidArgument (others may read it; not its key), kIo. What
//             is damaged in an open folder is left out and counted.
// Threads:    as Tier.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/sealer.h"
#include "tier/disk_shares.h"
#include "tier/folder_secret.h"
#include "tier/journal.h"
#include "tier/piece_id.h"
#include "tier/tier.h"

namespace kvilt {

class DiskTier : public Tier {
 public:
  using Key = std::optional<HashSecret>;
  using Shares = std::map<std::string, double>;  // of the limit, by tenant: above 0, together 1 at most
  // files: must outlive it; tests give their own.
  static Result<std::unique_ptr<DiskTier>> open(const std::string& folder, int64_t limit, const Key& key, Files& files,
                                                const Shares& shares = {});
  static Result<std::unique_ptr<DiskTier>> open(const std::string& folder, int64_t limit, const Key& key,
                                                const Shares& shares = {});
  ~DiskTier() override;

  // The secret that keys every digest in the folder: drawn when the folder was made, or made of the key.
  const HashSecret& secret() const { return secret_; }
  bool sealed() const { return sealer_.has_value(); }
  // What the folder began with (FolderSecret::seed).
  const HashSecret& seed() const { return seed_; }
  // It begins anew with the seed of another folder, whose pieces are found here then. key: its own.
  // REQUIRES: it holds nothing; it has a key if and only if it is sealed.
  Status begin_anew(const HashSecret& seed, const Key& key);
  // Its secret is this one from the next start on: what it holds under that is found then. REQUIRES: it has no key.
  Status take_secret(const HashSecret& secret);
  // As put(), but nothing goes for it: kExhausted where there is no room.
  Status add(const StoredPiece& piece, std::span<const std::byte> values);
  Status add_annexes(uint64_t id, std::span<const std::byte> annexes);  // the same of put_annexes()
  int64_t damaged() const { return damaged_; }                          // records that open() had to leave out
  // All that it holds, of whatever maker, by id.
  Result<std::vector<StoredPiece>> all();

  Result<std::vector<StoredPiece>> known(const Digest& maker, uint32_t token_bytes) override;
  uint64_t new_id() override;
  Status put(const StoredPiece& piece, std::span<const std::byte> values, std::vector<uint64_t>& removed) override;
  Status get(uint64_t id, int32_t chunk, std::vector<std::byte>& out) override;
  bool in_blocks() const override { return true; }
  Status get_blocks(uint64_t id, int32_t chunk, Run blocks, std::vector<std::byte>& out) override;
  bool keeps_annexes() const override { return true; }
  Status put_annexes(uint64_t id, std::span<const std::byte> annexes, std::vector<uint64_t>& removed) override;
  Status get_annexes(uint64_t id, std::vector<std::byte>& out) override;
  void touch(uint64_t id) override;
  void remove(uint64_t id) override;
  Status clear() override;
  Status flush() override;
  std::optional<Digest> owner(std::string_view tenant) const override;
  Part part_of(std::string_view tenant) const override;
  int64_t bytes() const override { return shares_.bytes(); }
  int64_t pieces() const override { return static_cast<int64_t>(entries_.size()); }

 private:
  enum class Kind : uint8_t { kPut = 1, kRemove = 2, kUsed = 3 };
  struct Entry {
    DiskShares::Held held;  // its bytes: of the file and of the record
    uint64_t parent = 0;
    int32_t tokens = 0;
    uint32_t token_bytes = 0, blocks = 1;
    std::vector<uint64_t> checksums;  // sealed: marks
    PieceJournal::Place place;
    int64_t annex_bytes = 0;  // of its annexes' file; 0: there is none
    int64_t file_bytes() const { return held.bytes - annex_bytes - PieceJournal::bytes_of(place.size); }
  };
  DiskTier(std::string folder, int64_t limit, Files& files, Shares shares)
      : folder_(std::move(folder)),
        limit_(limit),
        tenants_(std::move(shares)),
        files_(files),
        journal_(files),
        shares_(limit) {}
  Status lock();
  Status replay();
  Status check(const StoredPiece& piece, std::span<const std::byte> values) const;
  void know(FolderSecret secret);
  void take(std::span<const std::byte> sealed, PieceJournal::Place place);
  void sweep();
  void keep_limit();
  void enter(const StoredPiece& piece, PieceJournal::Place place);
  void forget(uint64_t id);
  bool drop(const DiskShares::Held* piece, std::vector<uint64_t>& removed);
  bool make_room(const std::optional<Digest>& owner, int64_t bytes, uint64_t last, std::vector<uint64_t>& removed);
  bool continues(uint64_t id, uint64_t other) const;
  void settle_owner(StoredPiece& piece);
  int64_t room_for(StoredPiece piece) const;
  static std::vector<std::byte> put_record(const StoredPiece& piece);
  Status store(StoredPiece& piece, std::span<const std::byte> values);
  Status write_values(StoredPiece& piece, std::span<const std::byte> values);
  bool are_whole(uint64_t id, int64_t first, std::span<const uint64_t> sums, std::vector<std::byte>& bytes) const;
  Result<PieceJournal::Place> append(std::span<const std::byte> record);
  std::optional<std::span<const std::byte>> opened(std::span<const std::byte> record,
                                                   std::vector<std::byte>& room) const;
  int64_t extra() const { return sealer_ ? Sealer::kExtra : 0; }  // bytes of a block beyond its values
  void note(Kind kind, uint64_t id);
  enum class By : uint8_t { kReader, kWriter };
  void use(uint64_t id, By by);  // kWriter: of what continues it
  std::vector<uint64_t> ends_used_again() const;
  void tidy_journal(bool at_once = false);
  Status rewrite_journal();
  std::string path_of(uint64_t id) const;

  // disk_annexes.cc
  std::string annexes_path(uint64_t id) const { return path_of(id) + ".annexes"; }
  bool find_annexes(uint64_t id, const std::string& path);
  Status store_annexes(uint64_t id, std::span<const std::byte> annexes, std::vector<uint64_t>* removed);
  void remove_annexes(uint64_t id);

  const std::string folder_;
  const int64_t limit_;
  const Shares tenants_;
  Files& files_;
  int lock_ = -1;
  HashSecret secret_ = HashSecret::fixed(0), seed_ = HashSecret::fixed(0);
  std::optional<Sealer> sealer_;
  PieceJournal journal_;
  std::unordered_map<uint64_t, Entry> entries_;
  DiskShares shares_;  // of entries_
  int64_t damaged_ = 0;
  int64_t live_ = 0;   // bytes of the journal that records of entries_ take
  int64_t stuck_ = 0;  // the journal's bytes when it could not be written anew; 0: it could
  PieceIds ids_;
};

}  // namespace kvilt
