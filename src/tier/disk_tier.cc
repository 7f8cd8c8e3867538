#include "tier/disk_tier.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <new>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "base/open_file.h"
#include "tier/piece_record.h"

namespace kvilt {
namespace {

namespace fs = std::filesystem;

constexpr int kFolders = 256;                        // of value files, by the id's low byte
constexpr int64_t kJournalSlack = int64_t{1} << 20;  // of records that say nothing any more
constexpr int32_t kReadsAhead = 2;
constexpr Sealer::Place kRecordPlace{Sealer::What::kRecord};

Status make_private_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return system_error(path);
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0) return system_error(path);
  if (!S_ISDIR(about.st_mode)) return error(Code::kIo, "{}: not a folder", path);
  if ((about.st_mode & 077) != 0) {
    return error(Code::kInvalidArgument, "{}: others may read or write it, and it holds what was asked: chmod 700 it",
                 path);
  }
  return {};
}

// The system reads these bytes while we do something else. Where it does not, they are read later.
void read_ahead(const std::string& path, int64_t offset, int64_t size) {
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.fd() >= 0) (void)::posix_fadvise(file.fd(), offset, size, POSIX_FADV_WILLNEED);
}

Files& the_files() {
  static Files files;
  return files;
}

}  // namespace

Result<std::unique_ptr<DiskTier>> DiskTier::open(const std::string& folder, int64_t limit, const Key& key,
                                                 const Shares& shares) {
  return open(folder, limit, key, the_files(), shares);
}

Result<std::unique_ptr<DiskTier>> DiskTier::open(const std::string& folder, int64_t limit, const Key& key, Files& files,
                                                 const Shares& shares) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) return error(Code::kIo, "{}: {}", folder, failed.message());
  std::unique_ptr<DiskTier> out(new DiskTier((fs::path(folder) / "kvilt-cache").string(), limit, files, shares));
  KVILT_TRY(make_private_folder(out->folder_));
  KVILT_TRY(out->lock());
  KVILT_ASSIGN(FolderSecret secret, open_folder_secret(out->folder_, key, files));
  out->know(std::move(secret));
  for (int i = 0; i < kFolders; ++i) KVILT_TRY(make_private_folder(fmt::format("{}/{:02x}", out->folder_, i)));
  KVILT_TRY(out->replay());
  const bool torn = out->damaged_ > 0;
  out->sweep();
  out->keep_limit();
  out->tidy_journal(torn);
  return out;
}

void DiskTier::know(FolderSecret secret) {
  secret_ = secret.digests;
  seed_ = secret.seed;
  sealer_ = std::move(secret.sealer);
  std::map<Digest, double> owners;
  for (const auto& [tenant, share] : tenants_) {
    if (const auto known = owner(tenant)) owners.emplace(*known, share);
  }
  shares_.set(owners);
}

// A name is in the folder as a digest only, which tells it to who has the secret and guesses it.
std::optional<Digest> DiskTier::owner(std::string_view tenant) const {
  if (tenant.empty()) return std::nullopt;
  return KeyedHash(secret_, "kvilt.folder.owner").add(tenant).finish();
}

Tier::Part DiskTier::part_of(std::string_view tenant) const {
  const std::optional<Digest> known = owner(tenant);
  return known ? Part{shares_.held_by(*known), shares_.share_of(*known)} : Part{};
}

// The secret first: records that it does not open name nothing that is there.
Status DiskTier::begin_anew(const HashSecret& seed, const Key& key) {
  CHECK(entries_.empty() && key.has_value() == sealed());
  KVILT_ASSIGN(FolderSecret secret, begin_folder(folder_, key, seed, files_));
  know(std::move(secret));
  return rewrite_journal();
}

Status DiskTier::take_secret(const HashSecret& secret) {
  CHECK(!sealed());
  KVILT_TRY(begin_folder(folder_, {}, secret, files_));
  return {};
}

DiskTier::~DiskTier() {
  if (lock_ >= 0) ::close(lock_);
}

Status DiskTier::lock() {
  const std::string path = folder_ + "/lock";
  lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) return system_error(path);
  if (::flock(lock_, LOCK_EX | LOCK_NB) == 0) return {};
  return error(Code::kUnavailable, "{}: another process uses this cache folder; give each its own", folder_);
}

Status DiskTier::replay() {
  const auto take = [this](std::span<const std::byte> record, PieceJournal::Place place) { this->take(record, place); };
  KVILT_ASSIGN(const PieceJournal::Opened opened, journal_.open(folder_ + "/journal", take));
  damaged_ += opened.damaged;
  for (const auto& [id, entry] : entries_) {
    if (entry.held.owner) shares_.claim(entry.held.domain, *entry.held.owner);
  }
  // Who continued what nobody owned then was in another line: both are in the same list now.
  for (const uint64_t id : ends_used_again()) use(id, By::kReader);
  return {};
}

// What an earlier start had more room for.
void DiskTier::keep_limit() {
  while (const DiskShares::Held* const piece = shares_.beyond()) remove(piece->id);
}

void DiskTier::take(std::span<const std::byte> sealed, PieceJournal::Place place) {
  std::vector<std::byte> room;
  const auto record = opened(sealed, room).value_or(std::span<const std::byte>());
  uint64_t kind = 0, id = 0;
  if (record.size() >= sizeof kind) std::memcpy(&kind, record.data(), sizeof kind);
  if (kind == static_cast<uint64_t>(Kind::kPut)) {
    auto piece = decode_piece(record.subspan(sizeof kind));
    if (!piece.ok()) {
      ++damaged_;
      return;
    }
    enter(*piece, place);
    use(piece->parent, By::kWriter);
    ids_.heard(piece->id);
  } else if (record.size() == 2 * sizeof id) {
    std::memcpy(&id, record.data() + sizeof kind, sizeof id);
    if (kind == static_cast<uint64_t>(Kind::kRemove)) forget(id);
    if (kind == static_cast<uint64_t>(Kind::kUsed)) use(id, By::kReader);
  } else {
    ++damaged_;
  }
}

// Files of no piece that a record names, and records whose file of values is gone.
void DiskTier::sweep() {
  std::unordered_map<uint64_t, bool> there;
  for (const auto& [id, entry] : entries_) there.emplace(id, false);
  std::array<bool, kFolders> listed{};
  for (int i = 0; i < kFolders; ++i) {
    const std::string folder = fmt::format("{}/{:02x}", folder_, i);
    const Result<std::vector<std::string>> names = files_.list(folder);
    listed[static_cast<size_t>(i)] = names.ok();
    if (!names.ok()) spdlog::warn("the cache: {}; what is in it is taken to be there", names.error().message);
    for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
      const std::string path = folder + "/" + name;
      uint64_t id = 0;
      const auto parsed = std::from_chars(name.data(), name.data() + name.size(), id, 16);
      const auto known = parsed.ec == std::errc() ? there.find(id) : there.end();
      if (known != there.end() && path_of(id) == path) {
        known->second = true;
      } else if (known == there.end() || !find_annexes(id, path)) {
        (void)files_.remove(path);
      }
    }
  }
  for (const auto& [id, found] : there) {
    if (found || !listed[id % kFolders]) continue;
    ++damaged_;
    remove(id);
  }
}

std::string DiskTier::path_of(uint64_t id) const { return fmt::format("{}/{:02x}/{:x}", folder_, id % kFolders, id); }

void DiskTier::enter(const StoredPiece& piece, PieceJournal::Place place) {
  forget(piece.id);
  const int64_t record = PieceJournal::bytes_of(place.size);
  const auto it = entries_
                      .emplace(piece.id, Entry{.held = {.id = piece.id,
                                                        .domain = piece.domain,
                                                        .owner = piece.owner,
                                                        .bytes = piece.bytes() + blocks_of(piece) * extra() + record},
                                               .parent = piece.parent,
                                               .tokens = piece.count(),
                                               .token_bytes = piece.token_bytes,
                                               .blocks = piece.blocks,
                                               .checksums = piece.checksums,
                                               .place = place})
                      .first;
  try {
    shares_.enter(it->second.held);
  } catch (const std::bad_alloc&) {
    entries_.erase(it);
    throw;
  }
  live_ += record;
}

void DiskTier::forget(uint64_t id) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return;
  shares_.leave(it->second.held);
  live_ -= PieceJournal::bytes_of(it->second.place.size);
  entries_.erase(it);
}

// The journal's word that a piece went, or was used, is worth no error: without it a start finds the file gone, or
// another order.
void DiskTier::note(Kind kind, uint64_t id) {
  const uint64_t record[] = {static_cast<uint64_t>(kind), id};
  (void)append(std::as_bytes(std::span(record)));
}

void DiskTier::remove(uint64_t id) {
  if (!entries_.contains(id)) return;
  remove_annexes(id);
  forget(id);
  note(Kind::kRemove, id);
  (void)files_.remove(path_of(id));
  tidy_journal();
}

// False: there is nothing to drop.
bool DiskTier::drop(const DiskShares::Held* piece, std::vector<uint64_t>& removed) {
  if (!piece) return false;
  removed.push_back(piece->id);
  remove(removed.back());
  return true;
}

// For so many bytes of the owner's. What `last` is or continues stays. False: then there is not enough.
bool DiskTier::make_room(const std::optional<Digest>& owner, int64_t bytes, uint64_t last,
                         std::vector<uint64_t>& removed) {
  const auto stays = [&](uint64_t id) { return continues(last, id); };
  while (!shares_.has_room(owner, bytes)) {
    if (!drop(shares_.next(owner, bytes, stays), removed)) return false;
  }
  return true;
}

// Whether `id` is the other one, or continues it.
bool DiskTier::continues(uint64_t id, uint64_t other) const {
  while (id != 0 && id != other) {
    const auto it = entries_.find(id);
    id = it == entries_.end() ? 0 : it->second.parent;
  }
  return id != 0;
}

// The beginning of a chain is moved last: it is removed last.
void DiskTier::use(uint64_t id, By by) {
  for (auto it = entries_.find(id); it != entries_.end(); it = entries_.find(it->second.parent)) {
    DiskShares::Held& held = it->second.held;
    by == By::kReader ? shares_.use(held) : shares_.refresh(held);
  }
}

// Of what was used again the ends of chains: who uses these uses all of it, each piece once.
std::vector<uint64_t> DiskTier::ends_used_again() const {
  std::vector<uint64_t> out = shares_.used_again();
  std::unordered_set<uint64_t> continued;
  for (const uint64_t id : out) continued.insert(entries_.at(id).parent);
  std::erase_if(out, [&](uint64_t id) { return continued.contains(id); });
  return out;
}

void DiskTier::touch(uint64_t id) {
  if (!entries_.contains(id)) return;
  use(id, By::kReader);
  note(Kind::kUsed, id);
  tidy_journal();
}

// A chain is one owner's, also where that was told of a part of it only.
void DiskTier::settle_owner(StoredPiece& piece) {
  const auto before = entries_.find(piece.parent);
  if (!piece.owner && before != entries_.end()) piece.owner = before->second.held.owner;
  if (piece.owner) shares_.claim(piece.domain, *piece.owner);
}

std::vector<std::byte> DiskTier::put_record(const StoredPiece& piece) {
  const auto kind = static_cast<uint64_t>(Kind::kPut);
  std::vector<std::byte> out(sizeof kind);
  std::memcpy(out.data(), &kind, sizeof kind);
  encode_piece(piece, out);
  return out;
}

// What it takes of the limit. Its sums are not known yet, but how many there will be.
int64_t DiskTier::room_for(StoredPiece piece) const {
  piece.checksums.resize(static_cast<size_t>(blocks_of(piece)));
  return piece.bytes() + blocks_of(piece) * extra() +
         PieceJournal::bytes_of(std::ssize(put_record(piece)) + (sealer_ ? Sealer::kExtra : 0));
}

// The bytes, then what names them.
Status DiskTier::store(StoredPiece& piece, std::span<const std::byte> values) {
  KVILT_TRY(write_values(piece, values));
  const Result<PieceJournal::Place> place = append(put_record(piece));
  if (!place.ok()) {
    (void)files_.remove(path_of(piece.id));
    return place.error();
  }
  enter(piece, *place);
  return {};
}

// The file, and what the piece's record will say of its blocks.
Status DiskTier::write_values(StoredPiece& piece, std::span<const std::byte> values) {
  piece.checksums.clear();
  std::vector<std::byte> sealed;
  if (sealer_) sealed.resize(values.size() + static_cast<size_t>(blocks_of(piece) * Sealer::kExtra));
  std::span<std::byte> left = sealed;
  for (int64_t i = 0; i < blocks_of(piece); ++i) {
    const auto block = block_of(piece, i, values);
    if (!sealer_) {
      piece.checksums.push_back(checksum(block));
      continue;
    }
    const auto out = left.first(block.size() + Sealer::kExtra);
    piece.checksums.push_back(sealer_->seal({Sealer::What::kChunk, piece.id, i}, block, out));
    left = left.subspan(out.size());
  }
  return files_.write(path_of(piece.id), sealer_ ? std::span<const std::byte>(sealed) : values);
}

// Blocks as they are in the file, of one chunk, the first of them being the piece's block `first`; sealed ones are
// opened, and follow each other then. False: one is not that whose sum or mark this is.
bool DiskTier::are_whole(uint64_t id, int64_t first, std::span<const uint64_t> sums,
                         std::vector<std::byte>& bytes) const {
  const size_t size = bytes.size() / sums.size(), plain = size - static_cast<size_t>(extra());
  for (size_t i = 0; i < sums.size(); ++i) {
    const auto block = std::span(bytes).subspan(i * size, size);
    if (!sealer_) {
      if (checksum(block) != sums[i]) return false;
      continue;
    }
    const Sealer::Place place{Sealer::What::kChunk, id, first + static_cast<int64_t>(i)};
    if (sealer_->open_in_place(place, block) != sums[i]) return false;
    if (i > 0) std::memmove(bytes.data() + i * plain, block.data(), plain);
  }
  bytes.resize(sums.size() * plain);
  return true;
}

Result<PieceJournal::Place> DiskTier::append(std::span<const std::byte> record) {
  return sealer_ ? journal_.append(sealer_->sealed(kRecordPlace, record)) : journal_.append(record);
}

// A record as it was appended. Nothing: it was not sealed by us.
std::optional<std::span<const std::byte>> DiskTier::opened(std::span<const std::byte> record,
                                                           std::vector<std::byte>& room) const {
  if (!sealer_) return record;
  room.assign(record.begin(), record.end());
  if (!sealer_->open(kRecordPlace, room)) return std::nullopt;
  return std::span<const std::byte>(room);
}

Status DiskTier::check(const StoredPiece& piece, std::span<const std::byte> values) const {
  CHECK(std::ssize(values) == piece.bytes() && piece.id != 0 && piece.count() > 0);
  CHECK(piece.blocks > 0 && piece.token_bytes % piece.blocks == 0);
  if (piece.parent >= piece.id) return id_too_small(piece);
  if (piece.parent != 0 && !entries_.contains(piece.parent))
    return error(Code::kNotFound, "what piece {:x} continues is not stored any more", piece.id);
  return {};
}

Status DiskTier::add(const StoredPiece& given, std::span<const std::byte> values) {
  KVILT_TRY(check(given, values));
  CHECK(!entries_.contains(given.id));
  StoredPiece piece = given;
  settle_owner(piece);
  if (!shares_.has_room(piece.owner, room_for(piece)))
    return error(Code::kExhausted, "{}: it holds {} bytes, and {} at most", folder_, bytes(), limit_);
  KVILT_TRY(store(piece, values));
  ids_.heard(piece.id);
  return {};
}

Status DiskTier::put(const StoredPiece& given, std::span<const std::byte> values, std::vector<uint64_t>& removed) {
  KVILT_TRY(check(given, values));
  StoredPiece piece = given;
  settle_owner(piece);
  const int64_t room = room_for(piece), most = shares_.most_of(piece.owner);
  if (room > most)
    return error(Code::kTooLong, "a piece of {} bytes is larger than all that may be its owner's ({} bytes)", room,
                 most);
  const auto stays = [&](uint64_t id) { return continues(piece.parent, id); };
  use(piece.parent, By::kWriter);
  if (!make_room(piece.owner, room, piece.parent, removed))
    return error(Code::kTooLong, "piece {:x} and what it continues are larger than all that may be their owner's",
                 piece.id);
  Status done = store(piece, values);
  // The disk has less room than the limit says: others' files fill it.
  for (int64_t freed = 0; !done.ok() && done.error().code == Code::kExhausted && freed < 2 * piece.bytes();) {
    const int64_t before = bytes();
    if (!drop(shares_.next_of_full(piece.owner, room, stays), removed)) break;
    freed += before - bytes();
    if (freed >= piece.bytes()) done = store(piece, values);
  }
  if (done.ok()) use(piece.parent, By::kWriter);
  tidy_journal();
  return done;
}

Status DiskTier::get(uint64_t id, int32_t chunk, std::vector<std::byte>& out) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return error(Code::kNotFound, "piece {:x} was removed", id);
  return get_blocks(id, chunk, {0, static_cast<int32_t>(it->second.blocks)}, out);
}

// Who reads some blocks of a chunk reads the same ones of all chunks, and then the next ones: the disk is told two reads
// ahead, so that it works while these bytes are checked and copied. That halves the time of all of them; whole chunks,
// which lie one behind the other, the system reads ahead by itself (docs/results/store.md#where-the-time-goes).
Status DiskTier::get_blocks(uint64_t id, int32_t chunk, Run blocks, std::vector<std::byte>& out) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return error(Code::kNotFound, "piece {:x} was removed", id);
  const Entry& entry = it->second;
  const int64_t all = entry.blocks;
  CHECK(chunk >= 0 && chunk < chunks_of(entry.tokens));
  CHECK(blocks.begin >= 0 && blocks.begin < blocks.end && blocks.end <= all);
  const auto place = [&](int32_t of, Run which) {
    const Run run = chunk_run(of, entry.tokens);
    const int64_t block = int64_t{run.size()} * entry.token_bytes / all + extra();
    const int64_t begin = int64_t{run.begin} * entry.token_bytes + of * all * extra();
    return std::pair(begin + which.begin * block, which.size() * block);
  };
  const auto [offset, size] = place(chunk, blocks);
  out.resize(static_cast<size_t>(size));
  Status read = files_.read(path_of(id), offset, out);
  if (read.ok() && blocks.size() < all) {
    const int32_t n = chunks_of(entry.tokens), next = chunk + kReadsAhead;
    const int32_t from = next < n ? blocks.begin : blocks.end;
    const Run which{from, std::min(from + blocks.size(), static_cast<int32_t>(all))};
    if (which.size() > 0) {
      const auto [ahead, bytes] = place(next % n, which);
      read_ahead(path_of(id), ahead, bytes);
    }
  }
  const int64_t first = chunk * all + blocks.begin;
  const auto sums = std::span(entry.checksums).subspan(static_cast<size_t>(first), static_cast<size_t>(blocks.size()));
  if (read.ok() && !are_whole(id, first, sums, out))
    read = error(Code::kCorrupt, "{}: chunk {} is damaged", path_of(id), chunk);
  if (!read.ok() && (read.error().code == Code::kCorrupt || read.error().code == Code::kNotFound)) remove(id);
  return read;
}

Status DiskTier::clear() {
  for (const uint64_t id : shares_.by_use()) remove(id);
  tidy_journal();
  return journal_.sync();
}

uint64_t DiskTier::new_id() { return ids_.next(); }

Status DiskTier::flush() { return journal_.sync(); }

// Its records in the order of use, and nothing else.
Status DiskTier::rewrite_journal() {
  std::vector<PieceJournal::Place*> places;
  for (const uint64_t id : shares_.by_use()) places.push_back(&entries_.at(id).place);
  KVILT_TRY(journal_.rewrite(places));
  for (const uint64_t id : ends_used_again()) note(Kind::kUsed, id);
  return {};
}

// When most of the journal says nothing any more. Where it cannot be written anew (the disk is full) it goes on as it is,
// behind its last good record.
void DiskTier::tidy_journal(bool at_once) {
  if (!at_once && journal_.bytes() < std::max(2 * live_, stuck_) + kJournalSlack) return;
  const Status done = rewrite_journal();
  stuck_ = done.ok() ? 0 : journal_.bytes();
  if (!done.ok()) spdlog::warn("the cache's journal is not made shorter: {}", done.error().message);
}

Result<std::vector<StoredPiece>> DiskTier::all() {
  std::vector<StoredPiece> out;
  if (entries_.empty()) return out;
  KVILT_ASSIGN(const MappedFile file, MappedFile::open(folder_ + "/journal"));
  std::vector<std::byte> room;
  for (const auto& [id, entry] : entries_) {
    if (entry.place.offset + entry.place.size > std::ssize(file.bytes())) continue;
    const auto sealed = file.bytes().subspan(static_cast<size_t>(entry.place.offset), entry.place.size);
    const auto record = opened(sealed, room);
    if (!record || record->size() < sizeof(uint64_t))
      return error(Code::kCorrupt, "{}/journal: it was changed while it was open", folder_);
    KVILT_ASSIGN(StoredPiece piece, decode_piece(record->subspan(sizeof(uint64_t))));
    out.push_back(std::move(piece));
  }
  std::ranges::sort(out, {}, &StoredPiece::id);
  return out;
}

Result<std::vector<StoredPiece>> DiskTier::known(const Digest& maker, uint32_t token_bytes) {
  KVILT_ASSIGN(std::vector<StoredPiece> out, all());
  std::erase_if(out,
                [&](const StoredPiece& piece) { return piece.maker != maker || piece.token_bytes != token_bytes; });
  return out;
}

}  // namespace kvilt
