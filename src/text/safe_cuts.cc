// text/safe_cuts.cc: see safe_cuts.h.
#include "text/safe_cuts.h"

#include "text/unicode.h"

namespace kvilt {
namespace {

// REQUIRES: 0 < at <= text.size().
int32_t character_before(std::string_view text, size_t at) {
  size_t begin = at - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return first_code_point(text.substr(begin, at - begin)).value;
}

}  // namespace

SafeCuts::SafeCuts(const Vocabulary& vocabulary, std::string mark) : mark_(std::move(mark)) {
  usable_ = !mark_.empty() && vocabulary.find_piece(mark_) >= 0;
  for (int32_t id = 0; usable_ && id < vocabulary.size(); ++id) {
    const std::string_view piece = vocabulary.piece(id);
    for (size_t at = piece.find(mark_, 1); at != std::string_view::npos; at = piece.find(mark_, at + 1)) {
      joined_.insert(character_before(piece, at));
    }
  }
}

bool SafeCuts::safe_before(std::string_view piece, size_t at) const {
  return !joined_.contains(character_before(piece, at));
}

}  // namespace kvilt
