// A stored piece's record, as a folder or a Redis gives it back once its sum or its seal was right: any bytes are a piece
// that keeps its own rules, or refused, and a piece is written as it was read. The same holds for its annexes.
#include <algorithm>

#include "base/check.h"
#include "tier/annex_record.h"
#include "tier/piece_record.h"

using namespace kvilt;

namespace {

void read_annexes(std::span<const std::byte> bytes) {
  const auto annexes = decode_annexes(bytes);
  if (!annexes) return;
  for (const StoredAnnex& annex : *annexes)
    CHECK(annex.layer >= 0 && annex.tokens.begin >= 0 && annex.tokens.size() > 0 && !annex.bytes.empty());
  const std::vector<std::byte> again = encode_annexes(*annexes);
  CHECK(std::ranges::equal(again, bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  read_annexes(std::as_bytes(std::span(data, size)));
  const auto piece = decode_piece(std::as_bytes(std::span(data, size)));
  if (!piece.ok()) return 0;
  CHECK(piece->id != 0 && piece->parent < piece->id && piece->count() > 0 && piece->bytes() > 0);
  CHECK(piece->blocks > 0 && piece->token_bytes % piece->blocks == 0 && piece->parent_tokens <= piece->pos);
  CHECK(std::ssize(piece->checksums) == int64_t{chunks_of(piece->count())} * piece->blocks);
  for (const Run& mark : piece->marks) CHECK(mark.begin >= 0 && mark.begin < mark.end && mark.end <= piece->count());
  std::vector<std::byte> bytes;
  encode_piece(*piece, bytes);
  CHECK(bytes.size() == size);
  const auto again = decode_piece(bytes);
  CHECK(again.ok() && *again == *piece);
  return 0;
}
