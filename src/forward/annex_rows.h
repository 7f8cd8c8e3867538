// forward/annex_rows.h: rows that enter a layer with a stored hidden state, and rows whose state is kept to be stored.
// Role:       what a plan's entries and `keep` mean to the driver (plan/plan.h); the states lie in annexes (kv/annex.h).
// Invariants: a row that enters has the state that was stored, whatever the chunk; as fp32 bit for bit.
// Threads:    the engine thread.
// Cost:       a copy of D floats a row.
// Not here:   publishing what was kept (engine/content_cache.cc).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "forward/batch_rows.h"
#include "forward/chunk.h"
#include "kv/page_table.h"

namespace kvilt {

// Of a token's state of D elements, as an annex of the kind has it.
int64_t state_bytes(AnnexKind kind, int D);

// The bytes of these rows, as an annex of the kind takes them. REQUIRES: they were computed.
std::vector<std::byte> bytes_of(KeptRows& kept, Run positions);
// The same of a mean: share times these, and 1 - share times those that are stored with `placed`, in their order.
// REQUIRES: as many are placed, and each has its row.
std::vector<std::byte> mean_bytes(KeptRows& kept, Run positions, const Placement& placed, float share);

// Adds the rows that enter layer l to `rows` and their states to x. The spares are memory, exchanged with them.
void join_rows(std::span<const Chunk> chunks, int l, BatchRows& rows, FloatMat& x, BatchRows& spare_rows,
               FloatMat& spare_x);

// out = the stored state of a placed token. REQUIRES: it has one (kv/annex.h, has_annex_row); out has D floats.
void read_state(std::span<const Placement> placed, AnnexKind kind, int32_t pos, std::span<float> out);

// Copies what the chunks keep of `written`: rows of x, the states as they enter layer l.
void keep_written(std::span<Chunk> chunks, int l, const BatchRows& written, Mat<const float> x);

}  // namespace kvilt
