#include "forward/annex_rows.h"

#include <algorithm>

#include "base/check.h"
#include "kv/annex.h"
#include "tensor/kv_row.h"

namespace kvilt {
namespace {

DType row_type(AnnexOf of) {
  CHECK(by_token(of));
  return of == AnnexOf::kHiddenInt8 ? DType::kI8 : of == AnnexOf::kHiddenBF16 ? DType::kBF16 : DType::kF32;
}

// The rows at `positions` one after the other; state_of(pos): D floats.
template <class StateOf>
std::vector<std::byte> encoded(const KeptRows& kept, Run positions, StateOf state_of) {
  const DType type = row_type(kept.kind.of);
  const int D = kept.rows.D();
  const auto row = static_cast<size_t>(kv_row_bytes(type, D));
  std::vector<std::byte> out(row * static_cast<size_t>(positions.size()));
  for (int32_t pos = positions.begin; pos < positions.end; ++pos)
    encode_kv_row(type, D, state_of(pos), out.data() + static_cast<size_t>(pos - positions.begin) * row);
  return out;
}

bool enters_at(const Chunk& chunk, int l) { return chunk.stage->entry_at(l) != nullptr; }

}  // namespace

int64_t state_bytes(AnnexKind kind, int D) { return kv_row_bytes(row_type(kind.of), D); }

std::vector<std::byte> bytes_of(KeptRows& kept, Run positions) {
  return encoded(kept, positions, [&](int32_t pos) { return kept.rows.row(pos); });
}

std::vector<std::byte> mean_bytes(KeptRows& kept, Run positions, const Placement& placed, float share) {
  CHECK(placed.count == positions.size());
  const int D = kept.rows.D();
  std::vector<float> mean(static_cast<size_t>(D));
  return encoded(kept, positions, [&](int32_t pos) {
    read_state({&placed, 1}, kept.kind, placed.pos + pos - positions.begin, mean);
    const float* now = kept.rows.row(pos);
    for (int d = 0; d < D; ++d) mean[d] = share * now[d] + (1 - share) * mean[d];
    return mean.data();
  });
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
  for (size_t c = 0; c < chunks.size(); ++c) {
    const RowEntry* entry = chunks[c].stage->entry_at(l);
    for (int64_t r = out.first[c]; r < out.first[c + 1]; ++r) {
      if (out.index[r] >= 0) {
        std::copy_n(x.view().row(out.index[r]), D, to.row(r));
      } else {
        read_state(chunks[c].kv->first_placements(), entry->state, out.pos[r], {to.row(r), static_cast<size_t>(D)});
      }
    }
  }
  std::swap(rows, spare_rows);
  std::swap(x, spare_x);
}

void read_state(std::span<const Placement> placed, AnnexKind kind, int32_t pos, std::span<float> out) {
  const auto D = static_cast<int>(out.size());
  std::vector<std::byte> bytes(static_cast<size_t>(state_bytes(kind, D)));
  annex_row(placed, kind, pos, bytes);
  decode_kv_row(row_type(kind.of), D, bytes.data(), out.data());
}

void keep_written(std::span<Chunk> chunks, int l, const BatchRows& written, Mat<const float> x) {
  for (size_t c = 0; c < chunks.size(); ++c) {
    for (KeptRows& kept : chunks[c].kept) {
      if (kept.kind.layer != l) continue;
      for (int64_t r = written.first[c]; r < written.first[c + 1]; ++r) {
        if (contains(kept.rows.rows(), written.pos[r]))
          std::copy_n(x.row(written.index[r]), x.cols, kept.rows.row(written.pos[r]));
      }
    }
  }
}

}  // namespace kvilt
