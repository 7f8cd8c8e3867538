#include "tier/cache_export.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "base/checksum.h"
#include "base/error.h"
#include "tier/annex_record.h"
#include "tier/piece_id.h"
#include "tier/piece_record.h"

namespace kvilt {
namespace {

constexpr char kExportMagic[8] = {'k', 'v', 'i', 'l', 't', '-', 'c', 'e'};
constexpr uint32_t kExportPieceMagic = 0x31585645;    // "EVX1"
constexpr uint32_t kExportAnnexesMagic = 0x31415645;  // "EVA1"
constexpr Sealer::Place kExportedRecord{Sealer::What::kRecord};

struct ExportHeadBytes {
  char magic[8];
  uint32_t version, flags;  // flags: 1 sealed, 2 there is a seed
  uint8_t name[16];
  uint8_t seed[32];
  uint64_t pieces;
  uint64_t sum;  // of all before it
};
static_assert(sizeof(ExportHeadBytes) == 80);

struct ExportPieceBytes {
  uint32_t magic, record;  // bytes of the record
  uint64_t values;         // bytes
  uint64_t record_sum;
  uint64_t sum;  // of all before it
};
static_assert(sizeof(ExportPieceBytes) == 32);

template <class T>
uint64_t sum_before(const T& head) {
  return checksum(std::as_bytes(std::span(&head, 1)).first(offsetof(T, sum)));
}

size_t padded(size_t bytes) { return (bytes + 7) / 8 * 8; }

Error corrupt_export(const char* what) { return error(Code::kCorrupt, "an export of a cache folder: {}", what); }

int64_t values_size(const StoredPiece& piece, bool sealed) {
  return piece.bytes() + (sealed ? blocks_of(piece) * Sealer::kExtra : 0);
}

std::vector<std::byte> framed_as(uint32_t magic, std::span<const std::byte> record, std::span<const std::byte> values) {
  ExportPieceBytes head{magic, static_cast<uint32_t>(record.size()), values.size(), checksum(record), 0};
  head.sum = sum_before(head);
  std::vector<std::byte> out(sizeof head + padded(record.size()) + padded(values.size()));
  std::memcpy(out.data(), &head, sizeof head);
  std::ranges::copy(record, out.begin() + sizeof head);
  std::ranges::copy(values, out.begin() + static_cast<std::ptrdiff_t>(sizeof head + padded(record.size())));
  return out;
}

}  // namespace

Digest export_name(const HashSecret& secret) { return KeyedHash(secret, "kvilt.export.name").finish(); }

Result<ExportHead> read_export_head(std::span<const std::byte> file) {
  ExportHeadBytes bytes;
  if (file.size() < sizeof bytes) return corrupt_export("it is shorter than its head");
  std::memcpy(&bytes, file.data(), sizeof bytes);
  if (std::memcmp(bytes.magic, kExportMagic, sizeof bytes.magic) != 0)
    return corrupt_export("it does not begin as one");
  if (bytes.version == 0 || bytes.version > kExportVersion)
    return error(Code::kUnsupported,
                 "an export of a cache folder in format {}; this version of Kvilt reads formats 1 to {}", bytes.version,
                 kExportVersion);
  if (sum_before(bytes) != bytes.sum || bytes.flags > 3 || bytes.flags == 1)
    return corrupt_export("its head is damaged");
  ExportHead out;
  out.sealed = (bytes.flags & 1u) != 0;
  out.pieces = bytes.pieces;
  std::memcpy(out.name.data(), bytes.name, sizeof bytes.name);
  if ((bytes.flags & 2u) != 0)
    out.seed = HashSecret::of({reinterpret_cast<const char*>(bytes.seed), sizeof bytes.seed});
  return out;
}

std::vector<std::byte> encode_export_head(const ExportHead& head) {
  ExportHeadBytes bytes{};
  std::memcpy(bytes.magic, kExportMagic, sizeof kExportMagic);
  bytes.version = kExportVersion;
  bytes.flags = (head.sealed ? 1u : 0u) | (head.seed ? 2u : 0u);
  std::memcpy(bytes.name, head.name.data(), sizeof bytes.name);
  if (head.seed) std::memcpy(bytes.seed, head.seed->bytes().data(), sizeof bytes.seed);
  bytes.pieces = head.pieces;
  bytes.sum = sum_before(bytes);
  const auto all = std::as_bytes(std::span(&bytes, 1));
  return {all.begin(), all.end()};
}

Result<std::optional<Sealer>> export_sealer(const ExportHead& head, const DiskTier::Key& key) {
  if (head.sealed && !key)
    return error(Code::kInvalidArgument, "it is sealed: give its key (--cache-key FILE, or KVILT_CACHE_KEY)");
  if (!head.sealed && key)
    return error(Code::kInvalidArgument,
                 "it comes from a folder without a key, and goes into such a one only: leave out --cache-key and "
                 "KVILT_CACHE_KEY");
  if (!head.sealed) return std::optional<Sealer>();
  if (export_name(folder_secret(*head.seed, key).digests) != head.name)
    return error(Code::kInvalidArgument, "it is sealed with another key");
  return std::optional(Sealer(derived_key(*key, "kvilt.export.values", head.seed->bytes())));
}

std::vector<std::byte> encode_export_piece(StoredPiece piece, std::span<const std::byte> values, const Sealer* sealer) {
  std::vector<std::byte> all(static_cast<size_t>(values_size(piece, sealer != nullptr)));
  std::span<std::byte> left = all;
  piece.checksums.clear();
  for (int64_t i = 0; i < blocks_of(piece); ++i) {
    const auto block = block_of(piece, i, values);
    const auto out = left.first(block.size() + (sealer ? Sealer::kExtra : 0));
    left = left.subspan(out.size());
    if (!sealer) std::ranges::copy(block, out.begin());
    piece.checksums.push_back(sealer ? sealer->seal({Sealer::What::kChunk, piece.id, i}, block, out) : checksum(block));
  }
  std::vector<std::byte> record;
  encode_piece(piece, record);
  if (sealer) record = sealer->sealed(kExportedRecord, record);
  return export_frame(record, all);
}

std::vector<std::byte> encode_export_annexes(uint64_t id, std::span<const std::byte> annexes, const Sealer* sealer) {
  return framed_as(kExportAnnexesMagic, {}, bound_annexes(id, annexes, sealer));
}

std::vector<std::byte> export_frame(std::span<const std::byte> record, std::span<const std::byte> values) {
  return framed_as(kExportPieceMagic, record, values);
}

ExportReader::ExportReader(std::span<const std::byte> file, const Sealer* sealer)
    : file_(file), sealer_(sealer), at_(sizeof(ExportHeadBytes)) {}

// What begins where the reader is; behind it then. Nothing: no whole head does.
std::optional<ExportReader::Frame> ExportReader::take_frame() {
  ExportPieceBytes head;
  if (at_ + sizeof head > file_.size()) return std::nullopt;
  std::memcpy(&head, file_.data() + at_, sizeof head);
  const size_t left = file_.size() - at_ - sizeof head;
  const bool known = head.magic == kExportPieceMagic || head.magic == kExportAnnexesMagic;
  if (!known || sum_before(head) != head.sum || head.values > left || padded(head.record) + padded(head.values) > left)
    return std::nullopt;
  const Frame out{head.magic, head.record_sum, file_.subspan(at_ + sizeof head, head.record),
                  file_.subspan(at_ + sizeof head + padded(head.record), head.values)};
  at_ += sizeof head + padded(head.record) + padded(head.values);
  return out;
}

// Behind a damaged head the next whole one is looked for; behind a damaged piece, whose head is right, it is known.
std::optional<ExportReader::Piece> ExportReader::next() {
  while (at_ + sizeof(ExportPieceBytes) <= file_.size()) {
    const std::optional<Frame> frame = take_frame();
    if (!frame) at_ += 8;
    if (!frame || frame->magic != kExportPieceMagic || checksum(frame->record) != frame->record_sum) continue;
    if (std::optional<Piece> whole = read(frame->record, frame->values)) {
      take_annexes(*whole);
      return whole;
    }
  }
  return std::nullopt;
}

// Those of a piece come right behind it.
void ExportReader::take_annexes(Piece& to) {
  const size_t before = at_;
  const std::optional<Frame> frame = take_frame();
  if (!frame || frame->magic != kExportAnnexesMagic) {
    at_ = before;
    return;
  }
  auto annexes = annexes_of(to.piece.id, frame->values, sealer_);
  to.annexes_damaged = !annexes;
  if (annexes) to.annexes = *std::move(annexes);
}

std::optional<ExportReader::Piece> ExportReader::read(std::span<const std::byte> record,
                                                      std::span<const std::byte> values) const {
  std::vector<std::byte> opened(record.begin(), record.end());
  if (sealer_ && !sealer_->open(kExportedRecord, opened)) return std::nullopt;
  auto piece = decode_piece(opened);
  if (!piece.ok() || piece->id >= kMostPieceId) return std::nullopt;
  if (std::ssize(values) != values_size(*piece, sealer_ != nullptr)) return std::nullopt;
  Piece out{.piece = std::move(*piece), .values = {}};
  out.values.resize(static_cast<size_t>(out.piece.bytes()));
  std::vector<std::byte> block;
  auto to = out.values.begin();
  for (int64_t i = 0; i < blocks_of(out.piece); ++i) {
    const size_t size = block_of(out.piece, i, out.values).size() + (sealer_ ? Sealer::kExtra : 0);
    block.assign(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(size));
    values = values.subspan(size);
    const uint64_t kept = out.piece.checksums[static_cast<size_t>(i)];
    const bool whole =
        sealer_ ? sealer_->open({Sealer::What::kChunk, out.piece.id, i}, block) == kept : checksum(block) == kept;
    if (!whole) return std::nullopt;
    to = std::ranges::copy(block, to).out;
  }
  return out;
}

std::vector<StoredPiece> with_beginnings(std::span<const StoredPiece> all, const std::vector<StoredPiece>& some) {
  std::unordered_set<uint64_t> wanted;
  for (const StoredPiece& piece : some) wanted.insert(piece.id);
  std::vector<StoredPiece> out;
  for (size_t i = all.size(); i-- > 0;) {  // what a piece continues has the smaller id
    if (!wanted.contains(all[i].id)) continue;
    wanted.insert(all[i].parent);
    out.push_back(all[i]);
  }
  std::ranges::reverse(out);
  return out;
}

}  // namespace kvilt
