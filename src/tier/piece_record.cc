#include "tier/piece_record.h"

#include <cstring>

#include "base/error.h"

namespace kvilt {
namespace {

constexpr uint32_t kMostTokenBytes = 1 << 28;
constexpr int32_t kMostTokens = 1 << 24;

struct Fixed {
  uint64_t id, parent;
  uint8_t maker[16], domain[16];
  int32_t pos, parent_tokens;
  // flags: 1 exact, 2 prefix, 4 a digest of what is before it follows, 8 blocks, 16 an owner follows
  uint32_t flags, token_bytes;
  uint32_t tokens, marks, clean, blocks;  // blocks: 0 without flag 8, where a chunk is one
};
static_assert(sizeof(Fixed) == 80);

struct FixedClean {
  int32_t begin, end, before, zero;
  uint8_t digest[16];
};
static_assert(sizeof(FixedClean) == 32);

void append(std::vector<std::byte>& out, const void* data, size_t size) {
  const auto* from = static_cast<const std::byte*>(data);
  out.insert(out.end(), from, from + size);
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}
  // False: there is less.
  bool take(void* to, size_t size) {
    if (left_.size() < size) return false;
    if (size > 0) std::memcpy(to, left_.data(), size);
    left_ = left_.subspan(size);
    return true;
  }
  // Compared before anything is reserved.
  template <class T>
  bool take(std::vector<T>& to, size_t count) {
    if (left_.size() / sizeof(T) < count) return false;
    to.resize(count);
    return take(to.data(), count * sizeof(T));
  }
  bool at_end() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

bool inside(Run run, int32_t count) { return run.begin >= 0 && run.begin < run.end && run.end <= count; }

Error corrupt(const char* what) { return error(Code::kCorrupt, "a stored piece's record: {}", what); }

}  // namespace

void encode_piece(const StoredPiece& piece, std::vector<std::byte>& out) {
  Fixed fixed{};
  fixed.id = piece.id;
  fixed.parent = piece.parent;
  std::memcpy(fixed.maker, piece.maker.data(), sizeof fixed.maker);
  std::memcpy(fixed.domain, piece.domain.data(), sizeof fixed.domain);
  fixed.pos = piece.pos;
  fixed.parent_tokens = piece.parent_tokens;
  fixed.flags =
      (piece.exact ? 1u : 0u) | (piece.prefix ? 2u : 0u) | (piece.behind ? 4u : 0u) | (piece.blocks > 1 ? 8u : 0u);
  if (piece.owner) fixed.flags |= 16u;
  fixed.token_bytes = piece.token_bytes;
  fixed.tokens = static_cast<uint32_t>(piece.tokens.size());
  fixed.marks = static_cast<uint32_t>(piece.marks.size());
  fixed.clean = static_cast<uint32_t>(piece.clean.size());
  fixed.blocks = piece.blocks > 1 ? piece.blocks : 0;
  append(out, &fixed, sizeof fixed);
  if (piece.behind) append(out, piece.behind->data(), piece.behind->size());
  if (piece.owner) append(out, piece.owner->data(), piece.owner->size());
  append(out, piece.tokens.data(), piece.tokens.size() * sizeof(int32_t));
  for (const Run& mark : piece.marks) {
    append(out, &mark.begin, sizeof mark.begin);
    append(out, &mark.end, sizeof mark.end);
  }
  for (const CleanNote& note : piece.clean) {
    FixedClean one{note.tokens.begin, note.tokens.end, note.before, 0, {}};
    std::memcpy(one.digest, note.digest.data(), sizeof one.digest);
    append(out, &one, sizeof one);
  }
  append(out, piece.checksums.data(), piece.checksums.size() * sizeof(uint64_t));
}

Result<StoredPiece> decode_piece(std::span<const std::byte> bytes) {
  Reader in(bytes);
  Fixed fixed{};
  if (!in.take(&fixed, sizeof fixed)) return corrupt("cut short");
  StoredPiece out;
  out.id = fixed.id;
  out.parent = fixed.parent;
  std::memcpy(out.maker.data(), fixed.maker, sizeof fixed.maker);
  std::memcpy(out.domain.data(), fixed.domain, sizeof fixed.domain);
  out.pos = fixed.pos;
  out.parent_tokens = fixed.parent_tokens;
  out.exact = (fixed.flags & 1u) != 0;
  out.prefix = (fixed.flags & 2u) != 0;
  out.token_bytes = fixed.token_bytes;
  if (fixed.tokens == 0 || fixed.tokens > kMostTokens || fixed.pos < 0 || fixed.pos > kMostTokens)
    return corrupt("it has no tokens, or too many");
  if (fixed.id == 0 || fixed.parent >= fixed.id || fixed.parent_tokens < 0 || fixed.parent_tokens > fixed.pos ||
      fixed.token_bytes == 0 || fixed.token_bytes > kMostTokenBytes || fixed.flags > 31)
    return corrupt("its numbers contradict each other");
  if ((fixed.flags & 8u) != 0) out.blocks = fixed.blocks;
  if ((fixed.flags & 8u) != 0 ? fixed.blocks < 2 || fixed.token_bytes % fixed.blocks != 0 : fixed.blocks != 0)
    return corrupt("its chunks cannot be cut into so many blocks");
  if ((fixed.flags & 4u) != 0) {
    if (fixed.parent == 0) return corrupt("it continues nothing, and says what is before it");
    if (Digest& behind = out.behind.emplace(); !in.take(behind.data(), behind.size())) return corrupt("cut short");
  }
  if ((fixed.flags & 16u) != 0) {
    if (Digest& owner = out.owner.emplace(); !in.take(owner.data(), owner.size())) return corrupt("cut short");
  }
  std::vector<FixedClean> clean;
  std::vector<int32_t> marks;
  const bool whole = in.take(out.tokens, fixed.tokens) && in.take(marks, size_t{2} * fixed.marks) &&
                     in.take(clean, fixed.clean) &&
                     in.take(out.checksums, static_cast<size_t>(chunks_of(out.count())) * out.blocks) && in.at_end();
  if (!whole) return corrupt("its length is not that of what it holds");
  for (const int32_t id : out.tokens) {
    if (id < 0) return corrupt("a token is negative");
  }
  for (size_t i = 0; i < marks.size(); i += 2) {
    if (!inside({marks[i], marks[i + 1]}, out.count())) return corrupt("a mark lies outside of it");
    out.marks.push_back({marks[i], marks[i + 1]});
  }
  for (const FixedClean& one : clean) {
    CleanNote note{{one.begin, one.end}, one.before, {}};
    if (!inside(note.tokens, out.count()) || one.before < 0) return corrupt("a clean part lies outside of it");
    std::memcpy(note.digest.data(), one.digest, sizeof one.digest);
    out.clean.push_back(note);
  }
  return out;
}

Digest digest_behind(const HashSecret& secret, const std::optional<Digest>& behind, std::span<const int32_t> tokens) {
  return KeyedHash(secret, "kvilt.stored.behind").add(behind.value_or(Digest{})).add(tokens).finish();
}

}  // namespace kvilt
