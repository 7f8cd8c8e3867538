// text/segmenter.h: turns one piece of text into token ids: BPE by merges, SentencePiece BPE by scores, or whole words.
// Role:       the innermost step of Tokenizer::encode.
// Invariants: a pure function of the piece; every byte is covered, by unknown tokens if need be (a byte-level
//             vocabulary with neither a byte's token nor an unknown token leaves the byte out, as Hugging Face does).
// Threads:    immutable after create(); any thread, each with its own SegmentScratch.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "text/merge.h"
#include "text/vocabulary.h"

namespace kvilt {

struct SegmentScratch {
  std::vector<Symbol> symbols;
};

class Segmenter {
 public:
  virtual ~Segmenter() = default;
  // REQUIRES: `vocabulary` outlives it.
  static Result<std::unique_ptr<Segmenter>> create(const TokenizerSpec& spec, const Vocabulary& vocabulary);
  // Appends the ids. REQUIRES: piece is UTF-8, or raw bytes if byte-level.
  virtual void append(std::string_view piece, SegmentScratch& scratch, std::vector<int32_t>& ids) const = 0;
};

}  // namespace kvilt
