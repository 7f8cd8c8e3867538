#include "forward/annex_rows.h"

#include <algorithm>

#include "kv/annex.h"
#include "tensor/kv_row.h"

namespace kvilt {
namespace {

DType row_type(AnnexOf of) { return of == AnnexOf::kHiddenInt8 ? DType::kI8 : DType::kF32; }

bool enters_at(const Chunk& chunk, int l) { return chunk.stage->entry_at(l) != nullptr; }

}  // namespace

std::vector<std::byte> bytes_of(KeptRows& kept, Run positions) {
  const DType type = row_type(kept.kind.of);
  const int D = kept.rows.D();
  const auto row = static_cast<size_t>(kv_row_bytes(type, D));
  std::vector<std::byte> out(row * static_cast<size_t>(positions.size()));
  for (int32_t pos = positions.begin; pos < positions.end; ++pos)
    encode_kv_row(type, D, kept.rows.row(pos), out.data() + static_cast<size_t>(pos - positions.begin) * row);
  return out;
}

void join_rows(std::span<const Chunk> chunks, int l, BatchRows& rows, FloatMat& x, BatchRows& spare_rows,
               FloatMat& spare_x) {
  if (std::ranges::none_of(chunks, [l](const Chunk& chunk) { return enters_at(chunk, l); })) return;
  const auto D = static_cast<int>(x.view().cols);
  BatchRows& out = spare_rows;
  out.clear();
  out.all = true;
  for (size_t c = 0; c < chunks.size(); ++c) {  // index: the row of x; -1: it enters
    const RowEntry* entry = chunks[c].stage->entry_at(l);
    int64_t r = rows.first[c];
    const auto from_below = [&](int32_t end) {
      for (; r < rows.first[c + 1] && rows.pos[r] < end; ++r) out.push(rows.pos[r], r);
    };
    for (const int32_t pos :
         entry ? positions(intersect(entry->rows, Runs{chunks[c].range})) : std::vector<int32_t>()) {
      from_below(pos);
      out.push(pos, -1);
    }
    from_below(INT32_MAX);
    out.first.push_back(out.size());
  }
  const Mat<float> to = spare_x.reshape(out.size(), D);
  std::vector<std::byte> bytes;
  for (size_t c = 0; c < chunks.size(); ++c) {
    const RowEntry* entry = chunks[c].stage->entry_at(l);
    const DType type = entry ? row_type(entry->state.of) : DType::kF32;
    bytes.resize(static_cast<size_t>(kv_row_bytes(type, D)));
    for (int64_t r = out.first[c]; r < out.first[c + 1]; ++r) {
      if (out.index[r] >= 0) {
        std::copy_n(x.view().row(out.index[r]), D, to.row(r));
      } else {
        annex_row(chunks[c].kv->first_placements(), entry->state, out.pos[r], bytes);
        decode_kv_row(type, D, bytes.data(), to.row(r));
      }
    }
  }
  std::swap(rows, spare_rows);
  std::swap(x, spare_x);
}

void keep_written(std::span<Chunk> chunks, int l, const BatchRows& written, Mat<const float> x) {
  for (size_t c = 0; c < chunks.size(); ++c) {
    for (KeptRows& kept : chunks[c].kept) {
      if (kept.kind.layer != l) continue;
      for (int64_t r = written.first[c]; r < written.first[c + 1]; ++r)
        std::copy_n(x.row(written.index[r]), x.cols, kept.rows.row(written.pos[r]));
    }
  }
}

}  // namespace kvilt
