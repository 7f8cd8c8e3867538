// tier/cache_carry.cc: the two ways of cache_export.h: out of a folder into a file, and out of a file into a folder.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/open_file.h"
#include "tier/cache_export.h"
#include "tier/files.h"

namespace kvilt {
namespace {

// All of a piece's bytes.
Status read_values(DiskTier& tier, const StoredPiece& piece, std::vector<std::byte>& out) {
  std::vector<std::byte> chunk;
  out.clear();
  for (int32_t i = 0; i < chunks_of(piece.count()); ++i) {
    KVILT_TRY(tier.get(piece.id, i, chunk));
    out.insert(out.end(), chunk.begin(), chunk.end());
  }
  return {};
}

// A file that takes its name when it is whole.
class NewFile {
 public:
  explicit NewFile(const std::string& path) : path_(std::filesystem::absolute(path).string()), next_(path_ + ".next") {}
  ~NewFile() {
    if (file_.fd() >= 0) ::unlink(next_.c_str());
  }
  Status open() {
    ::unlink(next_.c_str());  // what a process that was killed left; its mode may be another
    file_ = OpenFile(::open(next_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    return file_.fd() < 0 ? Status(system_error(next_)) : Status();
  }
  Status write(int64_t at, std::span<const std::byte> bytes) { return named(files_.write_at(file_.fd(), at, bytes)); }
  Status finish() {
    KVILT_TRY(named(files_.sync(file_.fd())));
    if (::rename(next_.c_str(), path_.c_str()) != 0) return system_error(path_);
    if (!file_.close()) return system_error(path_);
    return files_.sync_folder_of(path_);
  }

 private:
  Status named(Status done) const {
    return done.ok() ? done : error(done.error().code, "{}: {}", path_, done.error().message);
  }
  const std::string path_, next_;
  Files files_;
  OpenFile file_;
};

// A folder's pieces by what they are, so that the same comes in once, whatever its id.
class Import {
 public:
  explicit Import(DiskTier& tier) : tier_(tier) {}

  Status begin() {
    KVILT_ASSIGN(const std::vector<StoredPiece> all, tier_.all());
    for (const StoredPiece& piece : all) know(piece);
    return {};
  }

  // True: it is new. Errors: DiskTier::add()'s. annexed: it got the annexes, if there are any: those that were there stay,
  // and they are none of what is equal but for its KV.
  Result<bool> take(StoredPiece piece, std::span<const std::byte> values, std::span<const std::byte> annexes,
                    bool& annexed) {
    const uint64_t id = piece.id;
    settle(piece);
    if (const auto same = known_.find(content(piece)); same != known_.end()) {
      here_[id] = same->second;
      if (piece.prefix || same->second == id) annexed = annex(same->second, annexes);
      return false;
    }
    if (ids_.contains(piece.id) || piece.parent >= piece.id) piece.id = tier_.new_id();
    KVILT_TRY(tier_.add(piece, values));
    know(piece);
    here_[id] = piece.id;
    annexed = annex(piece.id, annexes);
    return true;
  }

 private:
  // Without room it is as good without them.
  bool annex(uint64_t id, std::span<const std::byte> annexes) {
    std::vector<std::byte> there;
    return !annexes.empty() && !tier_.get_annexes(id, there).ok() && tier_.add_annexes(id, annexes).ok();
  }
  // What it continues has another id here, or is lost: then it is no prefix any more, and is found as a piece.
  void settle(StoredPiece& piece) const {
    if (piece.parent == 0) return;
    const auto in_file = here_.find(piece.parent);
    const uint64_t parent = in_file != here_.end() ? in_file->second : ids_.contains(piece.parent) ? piece.parent : 0;
    piece.parent = parent;
    if (parent != 0) return;
    piece.prefix = false;
    piece.parent_tokens = 0;
    piece.behind.reset();
  }
  Digest content(const StoredPiece& piece) const {
    return KeyedHash(tier_.secret(), "kvilt.import")
        .add(piece.maker)
        .add(piece.domain)
        .add(int64_t{piece.exact} + 2 * int64_t{piece.prefix})
        .add(int64_t{piece.pos})
        .add(int64_t{piece.token_bytes})
        .add(piece.behind.value_or(Digest{}))
        .add(piece.tokens)
        .finish();
  }
  void know(const StoredPiece& piece) {
    known_.emplace(content(piece), piece.id);
    ids_.insert(piece.id);
  }

  DiskTier& tier_;
  std::unordered_map<Digest, uint64_t, DigestHash> known_;
  std::unordered_set<uint64_t> ids_;             // of the folder
  std::unordered_map<uint64_t, uint64_t> here_;  // an id of the file -> one of the folder
};

// That what the file holds can be found in the folder.
Status agree(DiskTier& tier, const ExportHead& head, const DiskTier::Key& key) {
  if (export_name(tier.secret()) == head.name) return {};
  if (tier.pieces() == 0 && head.seed) return tier.begin_anew(*head.seed, key);
  if (tier.pieces() == 0)
    return error(Code::kInvalidArgument,
                 "it was made without its folder's secret, so a new folder could not find what it holds: export with "
                 "--with-secret");
  return error(Code::kInvalidArgument,
               "it comes from a folder with another secret, and this one, which is not empty, could not find what it "
               "holds: import into a new folder");
}

}  // namespace

Result<ExportCounts> export_pieces(DiskTier& tier, std::span<const StoredPiece> pieces, const DiskTier::Key& key,
                                   bool with_secret, const std::string& path) {
  ExportHead head{.sealed = tier.sealed(), .pieces = 0, .name = export_name(tier.secret()), .seed = {}};
  if (head.sealed || with_secret) head.seed = tier.seed();
  KVILT_ASSIGN(const std::optional<Sealer> sealer, export_sealer(head, key));
  NewFile file(path);
  KVILT_TRY(file.open());
  ExportCounts out;
  int64_t at = std::ssize(encode_export_head(head));
  std::vector<std::byte> values, annexes;
  for (const StoredPiece& piece : pieces) {
    if (!read_values(tier, piece, values).ok()) {
      ++out.damaged;
      continue;
    }
    std::vector<std::byte> bytes = encode_export_piece(piece, values, sealer ? &*sealer : nullptr);
    KVILT_TRY(file.write(at, bytes));
    at += std::ssize(bytes);
    if (tier.get_annexes(piece.id, annexes).ok()) {
      bytes = encode_export_annexes(piece.id, annexes, sealer ? &*sealer : nullptr);
      KVILT_TRY(file.write(at, bytes));
      at += std::ssize(bytes);
      ++out.annexed;
    }
    ++out.pieces;
    out.tokens += piece.count();
  }
  head.pieces = static_cast<uint64_t>(out.pieces);
  KVILT_TRY(file.write(0, encode_export_head(head)));
  KVILT_TRY(file.finish());
  out.bytes = at;
  return out;
}

Result<ImportCounts> import_pieces(DiskTier& tier, std::span<const std::byte> file, const DiskTier::Key& key) {
  KVILT_ASSIGN(const ExportHead head, read_export_head(file));
  KVILT_ASSIGN(const std::optional<Sealer> sealer, export_sealer(head, key));
  KVILT_TRY(agree(tier, head, key));
  Import import(tier);
  KVILT_TRY(import.begin());
  ImportCounts out;
  ExportReader reader(file, sealer ? &*sealer : nullptr);
  while (auto read = reader.next()) {
    bool annexed = false;
    const Result<bool> added = import.take(read->piece, read->values, read->annexes, annexed);
    out.annexed += annexed ? 1 : 0;
    out.annexes_damaged += read->annexes_damaged ? 1 : 0;
    if (!added.ok() && added.error().code != Code::kNotFound) {
      out.stopped = added.error();
      break;
    }
    if (!added.ok()) continue;  // no id is left for it
    ++(*added ? out.added : out.there);
    if (*added) out.bytes += read->piece.bytes();
  }
  const auto whole = static_cast<uint64_t>(out.added + out.there);
  if (!out.stopped && head.pieces > whole) out.damaged = static_cast<int64_t>(head.pieces - whole);
  KVILT_TRY(tier.flush());
  return out;
}

}  // namespace kvilt
