// tier/piece_record.h: a stored piece as bytes, and back.
// Invariants: decoding is total: whatever the bytes say, it ends with a piece that keeps its own rules, or with an error.
//             docs/formats/cache_folder.md has the layout.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tier/tier.h"

namespace kvilt {

void encode_piece(const StoredPiece& piece, std::vector<std::byte>& out);
// Errors: kCorrupt.
Result<StoredPiece> decode_piece(std::span<const std::byte> bytes);

}  // namespace kvilt
