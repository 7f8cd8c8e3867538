// tier/annex_record.h: what is kept of a stored piece beside its values: annexes (kv/annex.h), as bytes and back.
// Idea:       they may come long after their piece, when a request has looked at it. So they are in no record of it: whoever
//             has the piece has them, or not, and a piece without them is as good as before.
// Invariants: decoding is total: whatever the bytes say, it ends with annexes that keep their own rules, or with nothing.
//             Kinds that nobody here knows are kept as they are. docs/formats/cache_folder.md has the layout.
// Not here:   what a kind's bytes mean (policy/samkv_stats.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/runs.h"
#include "base/sealer.h"

namespace kvilt {

struct StoredAnnex {
  uint32_t of = 0;    // AnnexKind::of as a number
  int32_t layer = 0;  // as AnnexKind's
  Run tokens;         // of the piece
  std::vector<std::byte> bytes;
  // They say the same of the same tokens.
  bool same_place(const StoredAnnex& other) const {
    return of == other.of && layer == other.layer && tokens == other.tokens;
  }
  bool operator==(const StoredAnnex&) const = default;
};

std::vector<std::byte> encode_annexes(std::span<const StoredAnnex> annexes);
std::optional<std::vector<StoredAnnex>> decode_annexes(std::span<const std::byte> bytes);

// As a file or an export has them: bound to the piece, with a checksum or sealed.
std::vector<std::byte> bound_annexes(uint64_t piece, std::span<const std::byte> annexes, const Sealer* sealer);
// Back. Nothing: they are damaged, or another piece's.
std::optional<std::vector<std::byte>> annexes_of(uint64_t piece, std::span<const std::byte> bound,
                                                 const Sealer* sealer);

}  // namespace kvilt
