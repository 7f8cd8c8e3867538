// A file of `kvilt cache import`: whatever the bytes say, reading ends, and each piece that it gives keeps its own rules,
// has the values that its sums are of, and is written as it was read.
// The first byte: even, what follows is the file; odd, it is records and values (u16, u16, their bytes) that get the sums
// that they should have, since the fuzzer shall reach what is behind them. Values without a record are annexes of the
// piece before them.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/checksum.h"
#include "tier/cache_export.h"
#include "tier/piece_id.h"
#include "tier/piece_record.h"

namespace kvilt {
namespace {

std::vector<std::byte> summed(std::span<const std::byte> left) {
  ExportHead head{.sealed = false, .pieces = 3, .name = {}, .seed = {}};
  std::vector<std::byte> out = encode_export_head(head);
  uint64_t last = 0;
  while (left.size() >= 4) {
    uint16_t sizes[2];
    std::memcpy(sizes, left.data(), sizeof sizes);
    left = left.subspan(sizeof sizes);
    const auto record = left.first(std::min<size_t>(sizes[0], left.size()));
    left = left.subspan(record.size());
    const auto values = left.first(std::min<size_t>(sizes[1], left.size()));
    left = left.subspan(values.size());
    const auto piece = decode_piece(record);
    const bool fits = piece.ok() && std::ssize(values) == piece->bytes();
    const auto frame = record.empty() ? encode_export_annexes(last, values, nullptr)
                       : fits         ? encode_export_piece(*piece, values, nullptr)
                                      : export_frame(record, values);
    if (fits) last = piece->id;
    out.insert(out.end(), frame.begin(), frame.end());
  }
  return out;
}

void run(std::span<const std::byte> file) {
  const auto head = read_export_head(file);
  if (!head.ok()) return;
  CHECK(!head->sealed || head->seed);
  (void)export_sealer(*head, {});
  ExportReader reader(file, nullptr);
  size_t read = 0;
  while (const auto one = reader.next()) {
    const StoredPiece& piece = one->piece;
    CHECK(piece.id != 0 && piece.id < kMostPieceId && piece.parent < piece.id && piece.count() > 0);
    CHECK(std::ssize(one->values) == piece.bytes());
    const auto frame = encode_export_piece(piece, one->values, nullptr);
    const std::vector<std::byte> begins(frame.begin(), frame.begin() + 32);
    CHECK(std::search(file.begin(), file.end(), begins.begin(), begins.end()) != file.end());
    read += frame.size();
    CHECK(!one->annexes_damaged || one->annexes.empty());
    if (!one->annexes.empty()) read += encode_export_annexes(piece.id, one->annexes, nullptr).size();
    CHECK(read < file.size());
  }
}

}  // namespace
}  // namespace kvilt

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto left = std::as_bytes(std::span(data + 1, size - 1));
  kvilt::run(data[0] % 2 == 0 ? std::vector<std::byte>(left.begin(), left.end()) : kvilt::summed(left));
  return 0;
}
