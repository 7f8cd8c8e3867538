// text/pre_tokenizer.h: cuts a normalised text into pieces, each of which is segmented by itself.
// Role:    between normalizer and segmentation; no token crosses a piece's border.
// Idea:    a list of split steps, each applied to the pieces of the one before (Hugging Face's Sequence, llama.cpp's
//          list of patterns).
// Threads: immutable after create().
// Cost:    one regular expression search a step over the text.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"
#include "text/tokenizer_spec.h"

namespace kvilt {

// Pieces of a text, in order and without overlap; a step may leave gaps (removed white space).
struct PieceList {
  std::string_view text;  // the caller's, or `own`
  std::unique_ptr<std::string> own;
  std::vector<ByteRange> pieces;
};

// What precedes a text; it decides whether a space is put before the text.
enum class Lead : uint8_t {
  kStart,      // nothing: the caller's text begins here
  kSpecial,    // a special token
  kContinues,  // other text, which the caller encoded before (EncodeOptions::continues)
};

class PreTokenizer {
 public:
  static Result<PreTokenizer> create(std::vector<SplitStep> steps);
  // REQUIRES: text is UTF-8 and outlives `out`.
  Status run(std::string_view text, Lead lead, PieceList& out) const;
  bool spells_bytes() const { return spells_bytes_; }  // the pieces come in GPT-2's printable spelling

 private:
  std::vector<SplitStep> steps_;
  std::vector<std::optional<Regex>> regexes_;
  bool spells_bytes_ = false;
};

// The steps that a name of GGUF's tokenizer.ggml.pre means.
struct NamedPre {
  std::vector<NormalizeStep> normalize;
  std::vector<SplitStep> split;
  bool ignore_merges = false;
};
Result<NamedPre> named_pre_tokenizer(std::string_view name);

// GPT-2's pattern, which is also what Hugging Face's ByteLevel step uses.
std::string_view gpt2_pattern();

}  // namespace kvilt
