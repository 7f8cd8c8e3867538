// tier/cache_export.h: pieces of a cache folder in one file, and from it into another folder.
// Idea:       every digest of a piece (whose it is, which model's, behind which tokens) is keyed with its folder's secret,
//             and only who knows the names could key them anew. So pieces are of use in a folder of the same secret only,
//             and a folder that holds nothing may take that secret over: from the file where the folder has no key and
//             who exports says so; where it has one from the file's salt and the key, which the file never has.
// Invariants: reading is total: whatever the bytes say, it ends with whole pieces or an error. What is not what was
//             written is never taken: sums find damage, and with a key nothing that was not sealed with it is taken.
//             Nothing that a folder holds goes, or is written over, for what is imported.
// Threads:    one.
// Bytes:      docs/formats/cache_export.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/sealer.h"
#include "tier/disk_tier.h"

namespace kvilt {

inline constexpr uint32_t kExportVersion = 3;  // 1: without blocks, 2: without owners; both are read as well

struct ExportHead {
  bool sealed = false;
  uint64_t pieces = 0;
  Digest name{};                   // tells secrets apart, and tells nothing of them
  std::optional<HashSecret> seed;  // FolderSecret::seed: always where it is sealed, else where the secret was asked for
};
// Tells a folder's secret from others.
Digest export_name(const HashSecret& secret);

// Errors: kCorrupt (damaged, or no export), kUnsupported (another version).
Result<ExportHead> read_export_head(std::span<const std::byte> file);
// What seals the pieces of an export. Errors: kInvalidArgument (the wrong key, or one too many or too few).
Result<std::optional<Sealer>> export_sealer(const ExportHead& head, const DiskTier::Key& key);

std::vector<std::byte> encode_export_head(const ExportHead& head);
// A piece and its values; its checksums are made anew.
std::vector<std::byte> encode_export_piece(StoredPiece piece, std::span<const std::byte> values, const Sealer* sealer);

// What a piece that comes right before it has beside its values (annex_record.h).
std::vector<std::byte> encode_export_annexes(uint64_t id, std::span<const std::byte> annexes, const Sealer* sealer);

// A record and values as a file has them, with their sums.
std::vector<std::byte> export_frame(std::span<const std::byte> record, std::span<const std::byte> values);

// The pieces of a file, one after the other; what is damaged is left out.
class ExportReader {
 public:
  // file: whole, with a head that was read; it and the sealer must outlive this.
  ExportReader(std::span<const std::byte> file, const Sealer* sealer);

  struct Piece {
    StoredPiece piece;
    std::vector<std::byte> values;
    std::vector<std::byte> annexes{};  // empty: none
    bool annexes_damaged = false;      // there were some
  };
  std::optional<Piece> next();  // nothing: that was all

 private:
  struct Frame {  // a head that is whole, and what it names
    uint32_t magic = 0;
    uint64_t record_sum = 0;
    std::span<const std::byte> record, values;
  };
  std::optional<Frame> take_frame();
  void take_annexes(Piece& to);
  std::optional<Piece> read(std::span<const std::byte> record, std::span<const std::byte> values) const;
  const std::span<const std::byte> file_;
  const Sealer* const sealer_;
  size_t at_;
};

// `some` and what they continue, by id.
std::vector<StoredPiece> with_beginnings(std::span<const StoredPiece> all, const std::vector<StoredPiece>& some);

struct ExportCounts {
  int64_t pieces = 0, tokens = 0, bytes = 0;
  int64_t damaged = 0;  // of the folder's: they are not in the file, nor in the folder any more
  int64_t annexed = 0;  // pieces with annexes
};
// A file for its owner only; an older one is replaced when this one is whole. key: the folder's. with_secret: without a
// key, the folder's secret too. Errors: kIo, kExhausted.
Result<ExportCounts> export_pieces(DiskTier& tier, std::span<const StoredPiece> pieces, const DiskTier::Key& key,
                                   bool with_secret, const std::string& path);

struct ImportCounts {
  int64_t added = 0, there = 0, damaged = 0;  // there: the folder had them
  int64_t bytes = 0;                          // of the added ones
  int64_t annexed = 0, annexes_damaged = 0;   // pieces that got annexes; whose annexes were left out
  std::optional<Error> stopped;               // why the rest was not looked at
};
// key: the folder's. Errors: those of the head and of export_sealer(); kInvalidArgument: its pieces could not be found in
// this folder, which has another secret.
Result<ImportCounts> import_pieces(DiskTier& tier, std::span<const std::byte> file, const DiskTier::Key& key);

}  // namespace kvilt
