// text/safe_cuts.h: places where a text may be cut before segmentation without changing a single token.
// Idea:    SentencePiece vocabularies segment whole texts. If no token has a character c followed by the space mark, no
//          merge can cross from c to a mark, so the text splits into words, whose ids can be remembered.
// Threads: immutable after create().
// Cost:    one search for the mark over the text.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>

#include "text/vocabulary.h"

namespace kvilt {

class SafeCuts {
 public:
  // `mark` spells a space. A vocabulary that lacks it as a token gets no cuts.
  SafeCuts(const Vocabulary& vocabulary, std::string mark);

  // Calls use(part) for the parts of `piece` in order.
  template <class Use>
  void for_each(std::string_view piece, Use&& use) const {
    size_t begin = 0;
    if (usable_) {
      for (size_t at = piece.find(mark_, 1); at != std::string_view::npos; at = piece.find(mark_, at + mark_.size())) {
        if (!safe_before(piece, at)) continue;
        use(piece.substr(begin, at - begin));
        begin = at;
      }
    }
    if (begin < piece.size()) use(piece.substr(begin));
  }

 private:
  bool safe_before(std::string_view piece, size_t at) const;

  std::string mark_;
  bool usable_ = false;
  std::unordered_set<int32_t> joined_;  // characters that some token has right before a mark
};

}  // namespace kvilt
