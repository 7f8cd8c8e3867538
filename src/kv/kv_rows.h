// kv/kv_rows.h: keys and values as plain bytes, for places outside of the pool, and back.
// Bytes:      of positions [a, b): for each layer and KV head their keys in order, then their values, as rows of the pool's
//             KV type; b - a times KvShape::token_bytes() in all. Keys are rotated as they were where they were computed:
//             they go back to the same positions.
// Invariants: what was copied out and back is the same to the bit. Copying out pins nothing: the order of eviction stays.
// Threads:    the engine thread.
// Not here:   sessions, which are whole requests of ragged heads (session_file.h); files (tier/).
#pragma once

#include <memory>
#include <span>

#include "kv/page_table.h"

namespace kvilt {

// REQUIRES: the segment has a slot for each of the positions at every layer; out has their bytes.
void copy_rows_out(const PageStore& store, const KvSegment& kv, Run positions, std::span<std::byte> out);

// A table with slots for the positions and nothing else. REQUIRES: the store has pages_for_rows() free pages.
int64_t pages_for_rows(const PageStore& store, Run positions);
std::unique_ptr<PageTable> table_for_rows(PageStore& store, const LayerRopes& ropes, Run positions);

// Of `positions`, whose bytes are given, those in `wanted`. REQUIRES: the table has slots for these.
void copy_rows_in(PageTable& table, Run positions, std::span<const std::byte> bytes, Run wanted);

}  // namespace kvilt
