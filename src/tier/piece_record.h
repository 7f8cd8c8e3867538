// tier/piece_record.h: a stored piece as bytes, and back; what a piece says of the chain that it continues.
// Invariants: decoding is total: whatever the bytes say, it ends with a piece that keeps its own rules, or with an error.
//             docs/formats/cache_folder.md has the layout.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "tier/tier.h"

namespace kvilt {

void encode_piece(const StoredPiece& piece, std::vector<std::byte>& out);
// Errors: kCorrupt.
Result<StoredPiece> decode_piece(std::span<const std::byte> bytes);

// What continues a piece has the larger id, or no reader takes its record.
inline Error id_too_small(const StoredPiece& piece) {
  return error(Code::kNotFound, "piece {:x} cannot continue {:x}: the larger id is of a wrong clock", piece.id,
               piece.parent);
}

// StoredPiece::behind of what continues a piece after its first tokens, which are `tokens`. behind: the piece's own.
Digest digest_behind(const HashSecret& secret, const std::optional<Digest>& behind, std::span<const int32_t> tokens);

}  // namespace kvilt
