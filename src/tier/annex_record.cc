#include "tier/annex_record.h"

#include <algorithm>
#include <cstring>

#include "base/checksum.h"

namespace kvilt {
namespace {

struct AnnexHead {
  uint32_t of;
  int32_t layer, begin, end;
  uint64_t bytes;
};
static_assert(sizeof(AnnexHead) == 24);

struct BoundHead {
  uint64_t sum;  // of all behind it
  uint64_t piece;
};

size_t padded_annex(size_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace

std::vector<std::byte> encode_annexes(std::span<const StoredAnnex> annexes) {
  std::vector<std::byte> out;
  for (const StoredAnnex& annex : annexes) {
    const AnnexHead head{annex.of, annex.layer, annex.tokens.begin, annex.tokens.end, annex.bytes.size()};
    const size_t at = out.size();
    out.resize(at + sizeof head + padded_annex(annex.bytes.size()));
    std::memcpy(out.data() + at, &head, sizeof head);
    std::ranges::copy(annex.bytes, out.begin() + static_cast<std::ptrdiff_t>(at + sizeof head));
  }
  return out;
}

// A length is compared with what is left before anything is reserved.
std::optional<std::vector<StoredAnnex>> decode_annexes(std::span<const std::byte> bytes) {
  std::vector<StoredAnnex> out;
  while (!bytes.empty()) {
    AnnexHead head;
    if (bytes.size() < sizeof head) return {};
    std::memcpy(&head, bytes.data(), sizeof head);
    bytes = bytes.subspan(sizeof head);
    const bool sound = head.layer >= 0 && head.begin >= 0 && head.begin < head.end && head.bytes > 0;
    if (!sound || head.bytes > bytes.size() || padded_annex(head.bytes) > bytes.size()) return {};
    const auto zeros = bytes.subspan(head.bytes, padded_annex(head.bytes) - head.bytes);
    if (std::ranges::any_of(zeros, [](std::byte b) { return b != std::byte{}; })) return {};
    const auto of = bytes.first(head.bytes);
    out.push_back({head.of, head.layer, {head.begin, head.end}, {of.begin(), of.end()}});
    bytes = bytes.subspan(padded_annex(head.bytes));
  }
  return out;
}

std::vector<std::byte> bound_annexes(uint64_t piece, std::span<const std::byte> annexes, const Sealer* sealer) {
  if (sealer) return sealer->sealed({Sealer::What::kAnnexes, piece}, annexes);
  BoundHead head{0, piece};
  std::vector<std::byte> out(sizeof head + annexes.size());
  std::ranges::copy(annexes, out.begin() + sizeof head);
  std::memcpy(out.data(), &head, sizeof head);
  head.sum = checksum(std::span<const std::byte>(out).subspan(sizeof head.sum));
  std::memcpy(out.data(), &head.sum, sizeof head.sum);
  return out;
}

std::optional<std::vector<std::byte>> annexes_of(uint64_t piece, std::span<const std::byte> bound,
                                                 const Sealer* sealer) {
  if (sealer) {
    std::vector<std::byte> out(bound.begin(), bound.end());
    if (!sealer->open({Sealer::What::kAnnexes, piece}, out)) return {};
    return out;
  }
  BoundHead head;
  if (bound.size() < sizeof head) return {};
  std::memcpy(&head, bound.data(), sizeof head);
  if (head.piece != piece || checksum(bound.subspan(sizeof head.sum)) != head.sum) return {};
  const auto annexes = bound.subspan(sizeof head);
  return std::vector<std::byte>(annexes.begin(), annexes.end());
}

}  // namespace kvilt
