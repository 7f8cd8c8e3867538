// engine/piece_lists.h: lists of pieces of one prompt, sorted by position and disjoint, from several sources.
// Threads: pure.
// Cost:    linear in the pieces, but for a sort where something was added.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/runs.h"
#include "index/cached_segment.h"
#include "index/clip_pieces.h"

namespace kvilt {

// Adds the parts of `more` that `pieces` leaves free, of at least min_tokens tokens or a whole piece. Both lists are
// sorted and disjoint.
inline void fill_gaps(const std::vector<Piece>& more, int32_t min_tokens, std::vector<Piece>& pieces) {
  if (more.empty()) return;
  Runs taken, wanted;
  for (const Piece& piece : pieces) taken.push_back({piece.pos, piece.pos + piece.count});
  taken = normalize(std::move(taken));
  const size_t before = pieces.size();
  auto next = taken.begin();
  for (const Piece& piece : more) {
    const int32_t end = piece.pos + piece.count;
    while (next != taken.end() && next->end <= piece.pos) ++next;
    auto over = next;
    for (int32_t pos = piece.pos; pos < end;) {
      const bool free = over == taken.end() || over->begin >= end;
      const int32_t until = free ? end : over->begin, size = until - pos;
      if (size >= std::min(min_tokens, piece.count))
        pieces.push_back({piece.segment, piece.segment_offset + pos - piece.pos, size, pos});
      if (free) break;
      pos = over++->end;
    }
  }
  if (pieces.size() > before) std::ranges::sort(pieces, {}, &Piece::pos);
}

// Whether the piece holds all of a mark, or all of it that is not before rules.from.
inline bool holds_mark(const Piece& piece, const ClipRules& rules) {
  const int32_t end = piece.pos + piece.count;
  auto mark = std::ranges::upper_bound(rules.marks, std::max(piece.pos, rules.from), {}, &Run::end);
  for (; mark != rules.marks.end() && mark->end <= end; ++mark) {
    if (std::max(mark->begin, rules.from) >= piece.pos) return true;
  }
  return false;
}

}  // namespace kvilt
