// kv/kv_rows.h: keys and values as plain bytes, for places outside of the pool, and back.
// Bytes:      of positions [a, b): for each layer and KV head their keys in order, then their values, as rows of the pool's
//             KV type; b - a times KvShape::token_bytes() in all. Keys are rotated as they were where they were computed:
//             they go back to the same positions.
// Invariants: what was copied out and back is the same to the bit. Copying out pins nothing: the order of eviction stays.
// Threads:    the engine thread; RowPlaces::copy_in any.
// Not here:   sessions, which are whole requests of ragged heads (session_file.h); files (tier/).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kv/page_table.h"

namespace kvilt {

// REQUIRES: the segment has a slot for each of the positions at every layer; out has their bytes.
void copy_rows_out(const PageStore& store, const KvSegment& kv, Run positions, std::span<std::byte> out);

// A table with slots for the positions and nothing else. REQUIRES: the store has pages_for_rows() free pages.
int64_t pages_for_rows(const PageStore& store, Run positions);
std::unique_ptr<PageTable> table_for_rows(PageStore& store, const LayerRopes& ropes, Run positions);

// Of `positions`, whose bytes are given, those in `wanted`. REQUIRES: the table has slots for these.
void copy_rows_in(PageTable& table, Run positions, std::span<const std::byte> bytes, Run wanted);

// Where the rows of a segment's positions are, so that a thread beside the engine's can fill them while somebody keeps
// their extents from leaving. REQUIRES: the segment has all positions in slots that follow each other from slot 0 on at
// every layer (table_for_rows()).
class RowPlaces {
 public:
  RowPlaces(const PageStore& store, const KvSegment& kv);
  // Of one layer's rows of `positions`, whose bytes are given, those in `wanted`, which the segment has. Who reads the
  // layer has to be told when they are there.
  void copy_in(int layer, Run positions, std::span<const std::byte> bytes, Run wanted) const;

 private:
  const int G_, P_;
  const size_t row_;
  const int32_t begin_;
  const size_t pages_of_head_;
  std::vector<std::byte*> pages_;  // [layer][KV head][page]: its keys; its values follow
};

}  // namespace kvilt
