#include "kv/session_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checksum.h"
#include "base/error.h"
#include "base/keyed_hash.h"
#include "tensor/kv_row.h"

namespace kvilt {
namespace {

static_assert(std::endian::native == std::endian::little, "the numbers of the file are little-endian");

constexpr char kMagic[8] = {'k', 'v', 'i', 'l', 't', '-', 'k', 'v'};
constexpr uint32_t kVersion = 1;
constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8};
constexpr uint32_t kMaxHeads = 1 << 20;     // L G
constexpr uint32_t kMaxElements = 1 << 16;  // E

}  // namespace

Error corrupt_session(const char* what) { return error(Code::kCorrupt, "session: {}", what); }

SessionHeader session_header(const KvShape& shape, const std::string& model) {
  SessionHeader h{};
  std::memcpy(h.magic, kMagic, sizeof kMagic);
  h.version = kVersion;
  h.kv_type = static_cast<uint32_t>(std::find(std::begin(kTypes), std::end(kTypes), shape.dtype) - std::begin(kTypes));
  h.L = static_cast<uint32_t>(shape.L), h.G = static_cast<uint32_t>(shape.G), h.E = static_cast<uint32_t>(shape.E);
  const Digest digest = KeyedHash(HashSecret::fixed(0), "kvilt session").add(model).finish();
  std::memcpy(h.model, digest.data(), digest.size());
  return h;
}

Runs kept_positions(const HeadKeep& keep, int32_t next) {
  if (keep.all()) return normalize({{0, next}});
  return normalize({{0, std::min(keep.sink, next)}, {std::max(0, next - keep.window), next}});
}

Status FromMemory::operator()(std::span<std::byte> part) {
  if (part.size() > bytes.size()) return corrupt_session("cut short");
  std::copy_n(bytes.begin(), part.size(), part.begin());
  bytes = bytes.subspan(part.size());
  return {};
}

// Reads a frame of `size` bytes.
Status SessionReader::receive(size_t size, const char* what) {
  constexpr size_t kPart = size_t{1} << 20;
  frame_.clear();
  for (size_t done = 0; done < size; done = frame_.size()) {
    frame_.resize(std::min(size, done + kPart));
    KVILT_TRY(source_(std::span(frame_).subspan(done)));
  }
  uint64_t sum;
  KVILT_TRY(source_(std::as_writable_bytes(std::span(&sum, 1))));
  at_ = 0;
  if (checksum(frame_) != sum) return error(Code::kCorrupt, "session: its {} is damaged", what);
  return {};
}

template <class T>
T SessionReader::take() {
  T value;
  std::memcpy(&value, frame_.data() + at_, sizeof value);
  at_ += sizeof value;
  return value;
}

Status SessionReader::read_head(const SessionHeader* expected) {
  KVILT_TRY(read_header(expected));
  KVILT_TRY(read_meta());
  return read_index();
}

Status SessionReader::read_header(const SessionHeader* expected) {
  frame_.resize(sizeof(SessionHeader));
  KVILT_TRY(source_(frame_));
  uint64_t sum;
  KVILT_TRY(source_(std::as_writable_bytes(std::span(&sum, 1))));
  at_ = 0;
  header_ = take<SessionHeader>();
  const SessionHeader& h = header_;
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0) return corrupt_session("these are not the bytes of one");
  if (h.version != kVersion) {
    return error(Code::kUnsupported, "session: of version {}; this program reads {}", h.version, kVersion);
  }
  if (checksum(frame_) != sum) return corrupt_session("its header is damaged");
  if (expected) KVILT_TRY(check_expected(*expected));
  const bool shape = h.L > 0 && h.G > 0 && h.E > 0 && h.L <= kMaxHeads && h.G <= kMaxHeads / h.L &&
                     h.E <= kMaxElements && h.kv_type < std::size(kTypes);
  if (!shape || h.positions == 0 || h.positions > kMaxPositions || h.follow > kMaxPositions || h.pieces > h.positions ||
      h.index_runs > kMaxIndexRuns) {
    return corrupt_session("its sizes contradict each other");
  }
  return {};
}

Status SessionReader::check_expected(const SessionHeader& expected) const {
  const SessionHeader& h = header_;
  if (std::memcmp(h.model, expected.model, sizeof h.model) != 0) {
    return error(Code::kUnsupported, "session: of another model; only the model that computed it can go on");
  }
  if (h.kv_type != expected.kv_type) {
    return error(Code::kUnsupported, "session: of another KV type than the pool's; start with the same --kv-type");
  }
  if (h.L != expected.L || h.G != expected.G || h.E != expected.E) {
    return error(Code::kUnsupported, "session: {} layers of {} KV heads of {}, but the pool has {} of {} of {}", h.L,
                 h.G, h.E, expected.L, expected.G, expected.E);
  }
  return {};
}

Status SessionReader::read_meta() {
  const size_t heads = size_t{header_.L} * header_.G, tokens = size_t{header_.positions} + header_.follow;
  KVILT_TRY(receive(tokens * sizeof(int32_t) + header_.pieces * sizeof(SessionPiece) + heads * sizeof(HeadKeep),
                    "list of tokens and heads"));
  for (size_t i = 0; i < tokens; ++i) {
    tokens_.push_back(take<int32_t>());
    if (tokens_.back() < 0) return corrupt_session("a token is negative");
  }
  int64_t end = 0;
  for (uint32_t i = 0; i < header_.pieces; ++i) {
    const SessionPiece piece = pieces_.emplace_back(take<SessionPiece>());
    if (piece.pos < end || piece.count <= 0 || int64_t{piece.pos} + piece.count > positions())
      return corrupt_session("its pieces overlap or lie outside of it");
    const int64_t from = int64_t{piece.pos} - piece.shift;
    if (piece.shift == 0 || from < 0 || from + piece.count > kMaxPositions)
      return corrupt_session("a piece has no origin");
    end = int64_t{piece.pos} + piece.count;
  }
  for (size_t i = 0; i < heads; ++i) {
    HeadKeep& keep = keeps_.emplace_back(take<HeadKeep>());
    if (keep.sink < 0 || keep.window < -1) return corrupt_session("a head keeps less than nothing");
    constexpr int32_t kMost = kMaxPositions;  // longer than any text: sums with positions stay in range
    keep.sink = std::min(keep.sink, kMost);
    keep.window = std::min(keep.window, kMost);
  }
  return {};
}

Status SessionReader::read_index() {
  KVILT_TRY(receive(header_.L * sizeof(uint32_t) + header_.index_runs * sizeof(SessionRun), "index"));
  std::vector<uint32_t> counts;
  uint64_t sum = 0;
  for (uint32_t layer = 0; layer < header_.L; ++layer) sum += counts.emplace_back(take<uint32_t>());
  if (sum != header_.index_runs) return corrupt_session("its index contradicts itself");
  for (const uint32_t count : counts) {
    auto& runs = index_.emplace_back();
    int64_t end = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const SessionRun run = runs.emplace_back(take<SessionRun>());
      if (run.pos < end || run.count <= 0 || int64_t{run.pos} + run.count > positions() ||
          run.source < SessionRun::kOwn || run.source >= static_cast<int32_t>(pieces_.size())) {
        return corrupt_session("its index is out of order");
      }
      end = int64_t{run.pos} + run.count;
      if (run.source == SessionRun::kOwn) continue;
      const SessionPiece& piece = pieces_[run.source];
      if (run.pos < piece.pos || end > int64_t{piece.pos} + piece.count)
        return corrupt_session("its index leaves a piece");
    }
  }
  return {};
}

std::vector<SessionRun> SessionReader::parts_of(int layer, int head) const {
  const Runs seen = kept_positions(keep(layer, head), positions());
  std::vector<SessionRun> parts;
  for (const SessionRun& run : index(layer)) {
    for (const Run& part : intersect(Runs{{run.pos, run.pos + run.count}}, seen))
      parts.push_back({part.begin, part.size(), run.source});
  }
  return parts;
}

Result<SessionReader::Rows> SessionReader::read_rows(int layer, int head) {
  Rows out;
  out.parts = parts_of(layer, head);
  for (const SessionRun& part : out.parts) out.count += static_cast<size_t>(part.count);
  out.row_bytes = static_cast<size_t>(kv_row_bytes(kTypes[header_.kv_type], static_cast<int>(header_.E)));
  KVILT_TRY(receive(2 * out.count * out.row_bytes, "keys and values"));
  out.k = frame_.data();
  out.v = frame_.data() + out.count * out.row_bytes;
  return out;
}

}  // namespace kvilt
