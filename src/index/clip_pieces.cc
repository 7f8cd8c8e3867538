// index/clip_pieces.cc: see clip_pieces.h.
#include "index/clip_pieces.h"

#include <algorithm>

namespace kvilt {

std::vector<Piece> clip_pieces(std::span<const Piece> pieces, std::span<const Run> within, const ClipRules& rules) {
  std::vector<Piece> out;
  auto mark = rules.marks.begin();
  auto first = within.begin();
  for (const Piece& piece : pieces) {
    const int32_t end = piece.pos + piece.count;
    while (first != within.end() && first->end <= piece.pos) ++first;
    for (auto text = first; text != within.end() && text->begin < end; ++text) {
      const Run part{std::max(piece.pos, text->begin), std::min(end, text->end)};
      // The first mark that may lie in the part.
      while (mark != rules.marks.end() && (mark->end <= part.begin || std::max(mark->begin, rules.from) < part.begin)) {
        ++mark;
      }
      const bool marked = mark != rules.marks.end() && mark->end <= part.end;
      if (part.size() == piece.count || part.size() >= rules.least || marked)
        out.push_back({piece.segment, piece.segment_offset + part.begin - piece.pos, part.size(), part.begin});
    }
  }
  return out;
}

}  // namespace kvilt
